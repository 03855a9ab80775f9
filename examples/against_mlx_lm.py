"""mlxgen and mlx-lm on the same weights in one run: a random GPT-2 of the 124M shape, float32.

    python examples/against_mlx_lm.py [RUNS]

Each side runs in its own process, in turn, as a user runs it: mlx-lm as pip installs it.
"""

import sys
import tempfile
from pathlib import Path

from mlxgen.cli.measure import compare, median, random_folder

PEER = "mlx-lm"


def main(runs: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = random_folder(Path(scratch, "gpt2-124m"))
        measured = []
        for m in compare(["mlxgen", PEER], folder, prompt_tokens=512, new_tokens=48, runs=runs):
            print(
                f"{m.side:8}  prefill {m.prefill_tps:7.1f} tokens/s   decode {m.decode_tps:6.1f} tokens/s", flush=True
            )
            measured.append(m)
    ours, theirs = median(measured, "mlxgen"), median(measured, PEER)
    for name in ("prefill_tps", "decode_tps"):
        print(f"{name}: {ours[name]:.1f} against {theirs[name]:.1f}, {ours[name] / theirs[name]:.1f} times")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
