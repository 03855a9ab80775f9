"""Endless text: many times more tokens than the model has positions, in constant memory and at a constant speed.

    python examples/endless.py [TOKENS] [MODEL]

When the position table is full and one more token has to be processed, the context slides: the cache is rebuilt from
the first `keep` tokens and the newest of the rest, half a table in all. No position past the table is ever read, and
the cost of a slide is spread over half a table of tokens.
"""

import argparse
import time

# mlxgen comes before MLX, to load a fast BLAS on Linux.
import mlxgen

# isort: split
import mlx.core as mx

KEEP = 4
PROMPT = "Once upon a time"

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("tokens", nargs="?", type=int, default=20_000, help="how many to generate (default: %(default)s)")
parser.add_argument("model", nargs="?", default="fairy-tales", help="a name or a folder (default: %(default)s)")
options = parser.parse_args()
total = options.tokens
model = mlxgen.load(options.model)
session = mlxgen.Session(model, keep=KEEP, overflow="slide")

lap = max(1, total // 20)  # a thousand of 20,000
clock = time.perf_counter()
peaks, speeds, highest = [], [], 0
print(f"{'tokens':>8} {'tokens/s':>9} {'peak memory':>12} {'cache':>6} {'slides':>6}")
for step in session.stream(PROMPT, max_tokens=total, seed=1, ignore_eos=True):
    highest = max(highest, session.cache[0].offset - 1)  # the highest position read so far
    if (step.index + 1) % lap == 0:
        now = time.perf_counter()
        speeds.append(lap / (now - clock))
        peaks.append(mx.get_peak_memory() / 1e6)
        done, clock = step.index + 1, now
        print(f"{done:8,} {speeds[-1]:9.1f} {peaks[-1]:9.2f} MB {step.cache_length:6} {session.slides:6}", flush=True)

n = model.config.n_positions
print(f"Highest position read: {highest}, of a table of {n} (0 to {n - 1}).")
if len(peaks) > 2:
    print(f"Peak memory, end against {2 * lap:,} tokens: {100 * (peaks[-1] / peaks[1] - 1):+.2f} %.")
    print(f"Speed, last {lap:,} tokens against the second {lap:,}: {100 * (speeds[-1] / speeds[1] - 1):+.1f} %.")
