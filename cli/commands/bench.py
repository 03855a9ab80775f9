"""`mlxgen bench`: tokens per second, memory, and the share of this machine's memory bandwidth, beside a peer's."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlxgen.cli.output import say, size, write, write_json

if TYPE_CHECKING:
    from mlxgen.cli.bench.measure import Measurement

SHAPES = {
    "124M": {},
    "355M": {"n_embd": 1024, "n_layer": 24, "n_head": 16},
    "774M": {"n_embd": 1280, "n_layer": 36, "n_head": 20},
}
PEERS = ("mlx-lm", "transformers", "ctranslate2")


@click.command()
@click.option(
    "-m", "--model", default="fairy-tales", envvar="MLXGEN_MODEL", show_default=True, help="A folder, hub id or alias."
)
@click.option("--shape", type=click.Choice(list(SHAPES)), help="Random weights of GPT-2's shape, instead of a model.")
@click.option(
    "--prompt-tokens", type=click.IntRange(min=1), multiple=True, default=[128], show_default=True, metavar="N"
)
@click.option("-n", "--max-tokens", type=click.IntRange(min=2), default=64, show_default=True, metavar="N")
@click.option("--batch-size", type=click.IntRange(min=1), multiple=True, default=[1], show_default=True, metavar="N")
@click.option(
    "--runs", type=click.IntRange(min=1), default=3, show_default=True, help="The median of so many is shown."
)
@click.option("--against", type=click.Choice(PEERS), multiple=True, help="Measure a peer on the same weights, in turn.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Also draw decode tokens per second against context length, of every side: a .png, .svg or .pdf.",
)
@click.option("--json", "as_json", is_flag=True, help="One object a line: every run, with its numbers as measured.")
@click.option("-q", "--quiet", is_flag=True, help="Nothing on standard error but errors.")
def bench(
    model: str,
    shape: str | None,
    prompt_tokens: tuple[int, ...],
    max_tokens: int,
    batch_size: tuple[int, ...],
    runs: int,
    against: tuple[str, ...],
    plot: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure prefill and decode. --prompt-tokens, --batch-size and --against can be repeated.

    Every run is a process of its own; with --against the sides run in turn, A B A B, on the same weights. mlx-lm
    runs as pip installs it, without the BLAS that mlxgen loads. --json keys: side, batch_size, prompt_tokens,
    new_tokens, load and first_token (seconds), prefill_tps, decode_tps (tokens per second, of all rows), memory
    (peak resident bytes).

    --plot FILE has each side decode one row from a short prompt to the model's last position, --runs times, in
    processes of their own too. These runs go into the picture only. It needs matplotlib: pip install "mlxgen[plot]".
    """
    from mlxgen.cli.bench.measure import bandwidth, bytes_per_step, check_fits, check_peers, compare, longest_decode
    from mlxgen.cli.bench.plot import check, draw

    if plot:
        check(plot)
    sides = list(dict.fromkeys(["mlxgen", *against]))
    check_peers(sides)
    with _folder(model, shape, bool(against)) as folder:
        check_fits(folder, max(prompt_tokens), max_tokens)
        if plot:
            longest_decode(folder)  # raises before anything is measured
        reading = bandwidth()
        if not as_json:
            write(f"memory is read at {size(reading)}/s (one-row products of a large float32 matrix)\n")
        for rows in batch_size:
            for length in prompt_tokens:
                measured = []
                for m in compare(
                    sides, folder, prompt_tokens=length, new_tokens=max_tokens, batch_size=rows, runs=runs
                ):
                    measured.append(m)
                    if as_json:
                        write_json(_entries(m))
                    elif not quiet:
                        say(f"{m.side} {len(measured)}/{runs * len(sides)}")
                if not as_json:
                    read = bytes_per_step(folder, length + max_tokens // 2, rows) / rows  # for each token
                    write("".join(f"{line}\n" for line in _table(measured, sides, read, reading)))
        if plot:
            draw(plot, _title(model, shape), _curves(sides, folder, runs, quiet))
            if not quiet:
                say(f"Wrote {plot}")


@contextmanager
def _folder(model: str, shape: str | None, shared: bool) -> Iterator[Path]:
    """The folder to measure: the model's own, or one that every side opens, in float32."""
    from mlxgen.cli.bench.measure import random_folder
    from mlxgen.weights import convert, resolve

    with tempfile.TemporaryDirectory() as scratch:
        if shape:
            yield random_folder(Path(scratch, shape), **SHAPES[shape])
        elif shared:
            yield convert(model, Path(scratch, "shared"), dtype="float32").folder
        else:
            yield resolve(model)


def _table(measured: list[Measurement], sides: Sequence[str], read: float, bandwidth: float) -> Iterator[str]:
    from mlxgen.cli.bench.measure import median

    first = measured[0]
    yield f"\n{first.prompt_tokens} prompt tokens, {first.new_tokens} new tokens, batch {first.batch_size}"
    yield f"{'':14}{'prefill':>12}{'decode':>12}{'first token':>14}{'peak memory':>14}{'bandwidth':>12}"
    ours = median(measured, "mlxgen")
    for side in sides:
        m = median(measured, side)
        share = m["decode_tps"] * read / bandwidth
        yield (
            f"{side:14}{m['prefill_tps']:>8.1f} t/s{m['decode_tps']:>8.1f} t/s{m['first_token'] * 1000:>11.0f} ms"
            f"{size(m['memory']):>14}{share:>11.0%}"
        )
    for side in sides[1:]:
        m = median(measured, side)
        prefill, decode = ours["prefill_tps"] / m["prefill_tps"], ours["decode_tps"] / m["decode_tps"]
        yield f"mlxgen / {side}: prefill {prefill:.2f} x, decode {decode:.2f} x"


def _entries(m: Measurement) -> dict[str, Any]:
    from dataclasses import asdict

    entries = asdict(m)
    del entries["seconds"]  # of every token: too many to print
    return entries


def _curves(sides: Sequence[str], folder: Path, runs: int, quiet: bool) -> dict[str, list[tuple[int, float]]]:
    """What --plot draws: each side's tokens per second over the context."""
    from mlxgen.cli.bench.measure import curve, decode

    measured = []
    for m in decode(list(sides), folder, runs):
        measured.append(m)
        if not quiet:
            say(f"{m.side} {len(measured)}/{runs * len(sides)}, over the whole context")
    return {side: curve([m for m in measured if m.side == side]) for side in sides}


def _title(model: str, shape: str | None) -> str:
    if shape:
        return f"GPT-2 {shape}, random weights"
    return Path(model).resolve().name if Path(model).is_dir() else model
