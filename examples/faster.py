"""Everything mlxgen claims about speed, all sides of each comparison in one run: GPT-2's 124M shape, float32.

    pip3 --python .venv/bin/python install ".[bench]"    # the other libraries; what is not installed is left out
    python examples/faster.py [--runs 3] [--only batch --only decode ...] [--small]

The sides take turns, each in its own process, and the median of the runs counts. mlx-lm gets the BLAS that mlxgen
loads; as pip installs it, it is many times slower. "Beside a busy process": another process computes without end
meanwhile. The weights are random, so the texts of the lookahead rows are dictated: on both sides, a logits processor
leaves one token a step.
"""

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import NamedTuple

import mlxgen
from mlxgen import blas, cpu_operations, device
from mlxgen.cli.bench.batches import BatchMeasurement, measure_batch
from mlxgen.cli.bench.beams import SEARCHING, measure_beams
from mlxgen.cli.bench.measure import compare_decodes, measure
from mlxgen.cli.bench.random_model import random_folder
from mlxgen.cli.bench.sides import SIDES
from mlxgen.cli.bench.speed import medians_of, ratio

# isort: split
import mlx.core as mx
import step_graph
from mlx.utils import tree_flatten

NEW = 64  # tokens of each answer
LENGTHS = (40, 68)  # of the shortest and the longest prompt of a batch
SMALL = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 5000}  # of --small, which shows that the script works

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


def batch(folder: Path, runs: int) -> Iterator[Row]:
    """Prompts of 40 to 68 tokens at once, prefill included."""
    for rows, wanted in ((16, 1.6), (4, 1.0), (32, 1.3)):
        speeds = batch_speeds(installed(), folder, rows, runs)
        yield against_the_best(f"{rows} prompts, {NEW} new tokens each", speeds, wanted)
    pairs = [[run_batch("mlxgen", folder, rows).decode_tps for rows in (16, 1)] for _ in range(runs)]
    many, one = (statistics.median(side) for side in zip(*pairs, strict=True))
    yield Row("batch 16 against batch 1, decoding", many / one, f"{many:.1f} to {one:.1f} tokens/s", "at least 8")


def decode(folder: Path, runs: int) -> Iterator[Row]:
    """One row, alone on the machine."""
    for context in (32, 512):
        decodes, prefills = step_speeds(installed(), folder, context, runs)
        yield from against_each(f"decode at context {context}", decodes, {"transformers": 1.5, "ctranslate2": 0.75})
    yield from against_each("prefill of 512 tokens", prefills, {"transformers": 1.0})


def busy(folder: Path, runs: int) -> Iterator[Row]:
    """The same beside a process that computes without end."""
    with busy_neighbour():
        for context in (32, 512):
            decodes, prefills = step_speeds(installed(), folder, context, runs)
            yield from against_each(f"decode at context {context}, busy", decodes, {"ctranslate2": 1.5})
        yield against_the_best("prefill of 512 tokens, busy", prefills, 0.9)
        yield against_the_best("16 prompts, busy", batch_speeds(installed(), folder, 16, runs), 0.9)


def beams(folder: Path, runs: int) -> Iterator[Row]:
    """Beam search with 4 beams, prefill included, and MLX's peak against what it needs at least."""
    sides = [side for side in installed() if side in SEARCHING]
    for context in (32, 512):
        found = [measure_beams(side, folder, context, NEW, 4) for _ in range(runs) for side in sides]
        same = len({tuple(one.tokens) for one in found}) == 1
        what = f"4 beams at context {context}, {'the same' if same else 'another'} text"
        speeds = {side: numbers["tokens_per_second"] for side, numbers in medians_of(found).items()}
        yield from against_each(what, speeds, {"transformers": 1.5})
    model = mlxgen.load(str(folder))
    weights = sum(array.nbytes for _, array in tree_flatten(model.decoder.parameters()))
    peak = mlxgen.beam_search(model, list(range(512)), max_tokens=NEW, ignore_eos=True)[0].peak_memory
    needed = weights + model.config.cache_bytes_per_token(4) * (512 + 4 * NEW)
    yield Row("4 beams, peak against weights, prompt, 4 texts", peak / needed, f"{peak / 1e6:.0f} MB", "at most 1.2")


def installed() -> list[str]:
    return [name for name, side in SIDES.items() if not side.missing]


def run_batch(side: str, folder: Path, rows: int) -> BatchMeasurement:
    return measure_batch(side, folder, batch_size=rows, lengths=LENGTHS, new_tokens=NEW, our_blas=True)


def batch_speeds(sides: list[str], folder: Path, rows: int, runs: int) -> dict[str, float]:
    """Each side's tokens per second, the median of runs that take turns."""
    medians = medians_of([run_batch(side, folder, rows) for _ in range(runs) for side in sides])
    return {side: numbers["tokens_per_second"] for side, numbers in medians.items()}


def step_speeds(sides: list[str], folder: Path, context: int, runs: int) -> tuple[dict[str, float], dict[str, float]]:
    """Each side's tokens per second in decoding after a prompt of so many tokens, and in its prefill."""
    measured = [
        measure(side, folder, prompt_tokens=context, new_tokens=NEW, our_blas=True)
        for _ in range(runs)
        for side in sides
    ]
    medians = medians_of(measured)
    decodes = {side: numbers["decode_tps"] for side, numbers in medians.items()}
    return decodes, {side: numbers["prefill_tps"] for side, numbers in medians.items()}


def against_each(what: str, speeds: dict[str, float], wanted: dict[str, float]) -> Iterator[Row]:
    ours = speeds["mlxgen"]
    for side in list(speeds)[1:]:
        want = f"at least {wanted[side]}" if side in wanted else ""
        yield Row(f"{what}, against {side}", ours / speeds[side], f"{ours:.1f} to {speeds[side]:.1f} tokens/s", want)


def against_the_best(what: str, speeds: dict[str, float], wanted: float) -> Row:
    peers = {side: speed for side, speed in speeds.items() if side != "mlxgen"}
    numbers = ", ".join(f"{side} {speed:.1f}" for side, speed in speeds.items()) + " tokens/s"
    return Row(f"{what}, against the best", speeds["mlxgen"] / max(peers.values()), numbers, f"at least {wanted}")


@contextlib.contextmanager
def busy_neighbour() -> Iterator[None]:
    """While the body runs, another process computes without end."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def context(folder: Path, runs: int) -> Iterator[Row]:
    """Decode speed at a context of 1,000 against 100, in the same run."""
    ratios = [ratio(run) for run in compare_decodes(["mlxgen"], folder, runs)]
    yield Row("tokens/s at context 1,000 against 100", statistics.median(ratios), "", "at least 0.85")


def lookahead(folder: Path, runs: int) -> Iterator[Row]:
    """Greedy generation with lookahead against without."""
    model = mlxgen.load(str(folder))
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
        yield Row(f"lookahead, {name}", gained, numbers, "at least 0.97" if "not repeat" in name else "at least 2.0")


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


def graph(folder: Path, runs: int) -> Iterator[Row]:
    """What Python builds for a step: the smaller, the better."""
    measured = step_graph.measure(step_graph.decoders())
    theirs = measured["mlx-lm"]
    for side, wanted in {"compiled": ("at most 0.6", "at most 0.75"), "plain": ("", "")}.items():
        ours = measured[f"mlxgen, {side}"]
        times = f"{ours[1] * 1000:.2f} to {theirs[1] * 1000:.2f} ms"
        yield Row(f"time to build a {side} step against mlx-lm", ours[1] / theirs[1], times, wanted[0])
        counts = f"{ours[0]} to {theirs[0]}"
        yield Row(f"primitives in a {side} step against mlx-lm", ours[0] / theirs[0], counts, wanted[1])


def memory(folder: Path, runs: int) -> Iterator[Row]:
    """MLX's peak while generating against weights and caches, alone and with 16 rows."""
    model = mlxgen.load(str(folder))
    weights = sum(array.nbytes for _, array in tree_flatten(model.decoder.parameters()))
    options: mlxgen.Options = {"temperature": 0, "ignore_eos": True}
    session = mlxgen.Session(model)
    alone = session.generate(list(range(900)), max_tokens=100, **options)
    cache = session.nbytes
    del session  # its cache is not the batch's
    per_row = model.config.cache_bytes_per_token(4)
    batch = list(mlxgen.batch(model, [list(range(68))] * 16, batch_size=16, max_tokens=NEW, **options))
    for what, peak, needed in (
        ("peak memory against weights and cache", alone.peak_memory, weights + cache),
        ("the same, 16 rows", batch[-1].peak_memory, weights + 16 * per_row * (68 + NEW)),
    ):
        yield Row(what, peak / needed, f"{peak / 1e6:.0f} to {needed / 1e6:.0f} MB", "at most 1.2")


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


SECTIONS: dict[str, Callable[[Path, int], Iterator[Row]]] = {
    f.__name__: f for f in (batch, decode, beams, busy, context, lookahead, start, memory, graph)
}


def main(runs: int, sections: list[str], small: bool) -> None:
    ours = ("with" if blas.is_quick_for_a_row() else "without") + " mlxgen's sgemm"
    ours += (", with" if cpu_operations.available_for() else ", without") + " its operations"
    print(f"{date.today()}, {device.device_name()}, BLAS {blas.loaded_library() or 'of MLX'}, {ours}")
    print(f"median of {runs}; ours to theirs")
    with tempfile.TemporaryDirectory() as scratch:
        folder = random_folder(Path(scratch, "gpt2-124m"), **(SMALL if small else {}))
        for section in sections:
            for row in SECTIONS[section](folder, runs):
                print(f"{row.what:52}{row.value:7.2f}   {row.wanted:14} {row.numbers}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="of each side (default: %(default)s)")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="a part of the table; repeatable")
    parser.add_argument("--small", action="store_true", help="a small model, to see that it works")
    given = parser.parse_args()
    main(given.runs, given.only or list(SECTIONS), given.small)
