"""Everything mlxgen claims about speed, with both sides of each comparison in one run: GPT-2's 124M shape, float32.

    pip3 --python .venv/bin/python install ".[bench]"    # the other libraries; what is not installed is left out
    python examples/faster.py [RUNS]

The sides take turns, each in its own process, as their users run them; the median of RUNS counts. The weights are
random, so the texts of the lookahead rows are dictated: on both sides, a logits processor leaves one token a step.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import mlxgen
from mlxgen import blas, device
from mlxgen.cli.bench.measure import compare, compare_decodes
from mlxgen.cli.bench.random_model import random_folder
from mlxgen.cli.bench.sides import SIDES
from mlxgen.cli.bench.speed import median, ratio

# isort: split
import mlx.core as mx
import step_graph
from mlx.utils import tree_flatten

PROMPT, NEW = 512, 64  # tokens of each side's run

ORDER = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"]
THINGS = ["bird", "ring", "apple", "cup", "key", "horse", "crown", "sword", "shoe", "ball"]
LIST = "The king had ten sons, and each had a room of his own.\n" + "".join(
    f"The {number} son had a room with a bed, a chair, a table and a window, and in the room was a golden {thing}.\n"
    for number, thing in zip(ORDER, THINGS, strict=True)
)
TALE = (
    "There was once a miller who was poor, but he had a beautiful daughter. It happened one day that he came to speak"
    " with the king, and, to give himself consequence, he told him that he had a daughter who could spin gold out of"
    " straw. The king said to the miller that this was an art that pleased him well; and if his daughter was as clever"
    " as he said, he should bring her to the castle the next morning."
)
REWRITTEN = TALE.replace("a miller who was poor", "a poor fisherman").replace("the miller", "the fisherman")
LOOP = "The king said that he did not know what he should do. " * 10


class Row(NamedTuple):
    what: str
    value: float  # ours divided by theirs, or seconds
    numbers: str  # both sides
    wanted: str = ""  # what the value should be


def peers(folder: Path, runs: int) -> Iterator[Row]:
    """Decode and prefill against whoever is installed."""
    sides = [name for name, side in SIDES.items() if not side.missing]
    measured = []
    for m in compare(sides, folder, prompt_tokens=PROMPT, new_tokens=NEW, runs=runs):
        measured.append(m)
        print(f"  {m.side:13} prefill {m.prefill_tps:7.1f} decode {m.decode_tps:6.1f} tokens/s", flush=True)
    wanted = {
        "mlx-lm": ("at least 2.3", "at least 14"),
        "transformers": ("at least 1.5", "at least 0.7"),
        "ctranslate2": ("at least 0.85", ""),
    }
    ours = median(measured, "mlxgen")
    for side in sides[1:]:
        theirs = median(measured, side)
        for name, want in zip(("decode_tps", "prefill_tps"), wanted[side], strict=True):
            numbers = f"{ours[name]:.1f} to {theirs[name]:.1f} tokens/s"
            yield Row(f"{name.removesuffix('_tps')} against {side}", ours[name] / theirs[name], numbers, want)


def context(folder: Path, runs: int) -> Iterator[Row]:
    """Decode speed at a context of 1,000 against 100, in the same run."""
    ratios = [ratio(run) for run in compare_decodes(["mlxgen"], folder, runs)]
    yield Row("tokens/s at context 1,000 against 100", statistics.median(ratios), "", "at least 0.8")


def lookahead(model: mlxgen.Model, runs: int) -> Iterator[Row]:
    """Greedy generation with lookahead against without."""
    encode = model.tokenizer.encode
    tale = mlxgen.generate(mlxgen.load(), "Once upon a time", max_tokens=300, seed=1, ignore_eos=True)
    texts = {
        "a loop": (encode(LOOP[:30]), encode(LOOP[30:])),
        "a list": (encode(LIST[:60]), encode(LIST[60:])),
        "a rewritten paragraph": (encode(TALE), encode(REWRITTEN)),
        "a tale that does not repeat itself": (tale.prompt_tokens, tale.tokens),
    }
    for name, (prompt, text) in texts.items():
        pairs = []
        for _ in range(max(runs, 3)):
            answers = [dictated(model, prompt, text, lookahead) for lookahead in (True, False)]
            assert answers[0].tokens == answers[1].tokens == text
            pairs.append([answer.generation_tps for answer in answers])
        guessed, plain = (statistics.median(side) for side in zip(*pairs, strict=True))
        gained = statistics.median(one / two for one, two in pairs)
        numbers = f"{guessed:.1f} to {plain:.1f} tokens/s, {answers[0].tokens_per_pass:.1f} tokens a pass"
        yield Row(f"lookahead, {name}", gained, numbers, "at least 0.97" if "not repeat" in name else "at least 2.5")


def dictated(model: mlxgen.Model, prompt: list[int], text: list[int], lookahead: bool) -> mlxgen.Generation:
    """A greedy answer that is forced to be the text."""
    return mlxgen.generate(
        model,
        prompt,
        max_tokens=len(text),
        temperature=0,
        ignore_eos=True,
        lookahead=lookahead,
        logits_processors=[dictation(text, len(prompt), model.config.vocab_size)],
    )


def dictation(text: list[int], start: int, vocab_size: int) -> Callable[[mx.array, mx.array], mx.array]:
    """A logits processor that rules out every token but the text's next one."""
    every = mx.arange(vocab_size)

    def dictate(tokens: mx.array, logits: mx.array) -> mx.array:
        return mx.where(every == text[tokens.shape[0] - start], logits, -mx.inf)

    return dictate


def graph() -> Iterator[Row]:
    """What Python builds for a step: the smaller, the better."""
    measured = step_graph.measure()
    theirs = measured["mlx-lm"]
    for side, wanted in {"compiled": ("at most 0.6", "at most 0.75"), "plain": ("", "")}.items():
        ours = measured[f"mlxgen, {side}"]
        times = f"{ours[1] * 1000:.2f} to {theirs[1] * 1000:.2f} ms"
        yield Row(f"time to build a {side} step against mlx-lm", ours[1] / theirs[1], times, wanted[0])
        counts = f"{ours[0]} to {theirs[0]}"
        yield Row(f"primitives in a {side} step against mlx-lm", ours[0] / theirs[0], counts, wanted[1])


def memory(model: mlxgen.Model) -> Iterator[Row]:
    """MLX's peak while generating against weights and cache."""
    weights = sum(array.nbytes for _, array in tree_flatten(model.decoder.parameters()))
    session = mlxgen.Session(model)
    answer = session.generate(list(range(900)), max_tokens=100, temperature=0, ignore_eos=True)
    needed = weights + session.nbytes
    numbers = f"{answer.peak_memory / 1e6:.0f} to {needed / 1e6:.0f} MB"
    yield Row("peak memory against weights and cache", answer.peak_memory / needed, numbers, "at most 1.15")


def start(folder: Path, runs: int) -> Iterator[Row]:
    """Seconds from the start of `mlxgen generate` to its first character, files in the system's cache."""
    for name, model, most in (("bundled model", "fairy-tales", 0.35), ("124M shape", str(folder), 1.3)):
        command = [sys.executable, "-m", "mlxgen", "generate", "Once upon a time", "-n", "4", "-m", model, "--no-echo"]
        seconds = []
        for _ in range(2 * runs + 1):
            began = time.perf_counter()
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                process.stdout.read(1)
                seconds.append(time.perf_counter() - began)
                process.stdout.read()
        yield Row(f"first text, {name}", statistics.median(seconds), "seconds", f"at most {most}")


def main(runs: int) -> None:
    print(f"{device.device_name()}, BLAS {blas.loaded_library() or 'of MLX'}, median of {runs}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = random_folder(Path(scratch, "gpt2-124m"))
        show(peers(folder, runs))
        show(context(folder, runs))
        shutil.copy(str(files("mlxgen.weights") / "fairy_tales" / "tokenizer.json"), folder)
        show(start(folder, runs))
        model = mlxgen.load(str(folder))
        show(lookahead(model, runs))
        show(memory(model))
    show(graph())


def show(rows: Iterator[Row]) -> None:
    for row in rows:
        print(f"{row.what:46}{row.value:7.2f}   {row.wanted:14} {row.numbers}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="?", type=int, default=3, help="of each side (default: %(default)s)")
    main(parser.parse_args().runs)
