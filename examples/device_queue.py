"""The double-buffered loop at work: when each step was sent to the device, and when Python had its token.

    python examples/device_queue.py [MODEL]

Step t + 1 is built on the token of step t before Python reads it. While Python waits for a token, the next step is
already in the device's queue, so the device never waits for Python.
"""

import argparse
import time

import mlxgen
from mlxgen.generation.answer import answer
from mlxgen.generation.request import check_options

STEPS = 12


class Clock:
    """An observer that notes when the graph of each step's choice is complete; it is sent to the device at once."""

    def __init__(self) -> None:
        self.sent: list[float] = []

    def before_layers(self, ids: object) -> None: ...
    def after_layers(self, hidden: object) -> None: ...
    def after_head(self, logits: object) -> None: ...
    def after_choice(self, *choice: object) -> None:
        self.sent.append(time.perf_counter())


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model", nargs="?", default="fairy-tales", help="a name or a folder (default: %(default)s)")
model = mlxgen.load(parser.parse_args().model)
request = check_options(max_tokens=STEPS, seed=0, ignore_eos=True).with_prompt(model, "Once upon a time")
clock = Clock()
read: list[float] = []
start = time.perf_counter()
for _ in answer(model, request, clock):
    read.append(time.perf_counter())
sent = clock.sent

queued = 0
for step in range(STEPS):
    line = f"step {step:2}: sent {1000 * (sent[step] - start):7.1f} ms, read {1000 * (read[step] - start):7.1f} ms"
    if step + 1 < STEPS:
        ahead = read[step] - sent[step + 1]
        queued += ahead > 0
        line += f"; the next had been queued for {1000 * ahead:5.1f} ms"
    print(line)
print(f"The next step was in the queue before a token was read in {queued} of {STEPS - 1} steps.")
