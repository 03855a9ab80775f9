"""One run of one side, which prints a line of JSON.

python -m mlxgen.cli.bench.one_run SIDE FOLDER PROMPT NEW [DTYPE]
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from itertools import pairwise
from pathlib import Path

from mlxgen.cli.bench.sides import SIDES


def peak_memory() -> int:
    """This process's peak resident size in bytes. On Linux, ru_maxrss would start from that of the parent process."""
    if sys.platform == "darwin":
        size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    else:
        facts = Path("/proc/self/status").read_text().splitlines()
        size = 1024 * next(int(line.split()[1]) for line in facts if line.startswith("VmHWM:"))
    return size


def random_prompt(folder: Path, tokens: int) -> list[int]:
    """Token ids of the folder's vocabulary, the same on every side."""
    size, chance = json.loads((folder / "config.json").read_text())["vocab_size"], random.Random(0)
    return [chance.randrange(size) for _ in range(tokens)]


def main(side: str, folder: str, prompt_tokens: str, new_tokens: str, *dtype: str) -> None:
    """Measure one side once and print the numbers of a Measurement as JSON."""
    prompt = random_prompt(Path(folder), int(prompt_tokens))
    start = time.perf_counter()
    run = SIDES[side].open(Path(folder), *dtype)
    loaded = time.perf_counter()
    for _ in run(prompt[:8], 2):  # what is set up once does not count
        pass
    start_of_prefill = time.perf_counter()
    for _ in run(prompt, 1):  # apart, because a side may wait for its second step before it shows the first token
        pass
    times = [time.perf_counter()]
    prefill = times[0] - start_of_prefill
    times += [time.perf_counter() for _ in run(prompt, int(new_tokens))]
    seconds = [after - before for before, after in pairwise(times)]
    first, rest = seconds[0], times[-1] - times[1]
    numbers = {
        "load": loaded - start,
        "first_token": first,
        "prefill_tps": len(prompt) / prefill,
        "decode_tps": (len(times) - 2) / rest if rest else 0.0,
        "memory": peak_memory(),
        "seconds": seconds,
    }
    print(json.dumps(numbers))


if __name__ == "__main__":
    main(*sys.argv[1:])
