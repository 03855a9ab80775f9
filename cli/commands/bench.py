"""`mlxgen bench`: tokens per second, memory and use of the memory bandwidth, alone or against other libraries."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlxgen.cli.bench.random_model import SHAPES
from mlxgen.cli.bench.sides import PEERS
from mlxgen.cli.options import dtype_option, model_option, quiet_option
from mlxgen.cli.output import chatty, say, size, write, write_json

if TYPE_CHECKING:
    from mlxgen.cli.bench.batches import BatchMeasurement
    from mlxgen.cli.bench.measure import Measurement

COUNT = click.IntRange(min=1)


@click.command()
@model_option
@dtype_option
@click.option("--shape", type=click.Choice(list(SHAPES)), help="Use random weights in this GPT-2 shape, not a model.")
@click.option(
    "--prompt-tokens",
    type=COUNT,
    multiple=True,
    default=[128],
    show_default=True,
    metavar="N",
    help="Length of the prompt. Repeatable.",
)
@click.option(
    "-n",
    "--max-tokens",
    type=click.IntRange(min=2),
    default=64,
    show_default=True,
    metavar="N",
    help="Generate N tokens.",
)
@click.option(
    "--batch-size",
    type=COUNT,
    multiple=True,
    default=[1],
    show_default=True,
    metavar="N",
    help="Answer N prompts at once. Repeatable.",
)
@click.option("--runs", type=COUNT, default=3, show_default=True, metavar="N", help="Run N times and show the median.")
@click.option(
    "--against",
    type=click.Choice(PEERS),
    multiple=True,
    help="Also measure this library on the same weights. Repeatable.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Also draw decode speed over context length to FILE (.png, .svg or .pdf).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per run instead of a table.")
@quiet_option
def bench(
    model: str,
    dtype: str | None,
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
    """Measure the speed of prefill and decode.

    Every run is a process of its own. With --against, the libraries take turns on the same weights, in float32.
    mlx-lm runs as installed by pip, without the BLAS that mlxgen loads.

    With --batch-size above 1, each library answers its prompts the way its users would: mlxgen with `mlxgen batch`.

    --json prints one object per run with these keys: side, batch_size, prompt_tokens, new_tokens, decode_tps (tokens
    per second), memory (peak resident bytes). One prompt adds load and first_token (seconds) and prefill_tps, several
    add tokens_per_second (new tokens of all rows, over the time of prompts and decoding).

    --plot FILE adds runs, used for the plot only, in which each library decodes one row from a short prompt to the
    model's last position. It needs matplotlib.
    """
    from mlxgen.cli.bench.bandwidth import memory_bandwidth
    from mlxgen.cli.bench.measure import check_fits, check_installed, longest_decode
    from mlxgen.cli.bench.plot import check_plot, draw_plot

    if dtype and against:
        raise click.UsageError("--dtype is for mlxgen alone; with --against, all compute in float32")
    if plot:
        check_plot(plot)
    talk = chatty(None, quiet)
    sides = list(dict.fromkeys(["mlxgen", *against]))
    check_installed(sides)
    with _folder(model, shape, shared=bool(against)) as folder:
        check_fits(folder, max(prompt_tokens), max_tokens)
        if plot:
            longest_decode(folder)  # raises before anything is measured
        bandwidth = memory_bandwidth()
        if not as_json:
            write(f"memory bandwidth: {size(bandwidth)}/s (measured by multiplying one row with a large matrix)\n")
        for rows in batch_size:
            for length in prompt_tokens:
                measured = []
                for m in _runs(sides, folder, rows, length, max_tokens, runs, dtype):
                    measured.append(m)
                    if as_json:
                        write_json(_entries(m))
                    elif talk:
                        say(f"{m.side} {len(measured)}/{runs * len(sides)}")
                if not as_json:
                    write(f"\n{length} prompt tokens, {max_tokens} new tokens, batch size {rows}\n")
                    lines = _table(measured, folder, bandwidth, dtype) if rows == 1 else _batch_table(measured)
                    write("".join(f"{line}\n" for line in lines))
        if plot:
            draw_plot(plot, _title(model, shape), _curves(sides, folder, runs, talk, dtype))
            if talk:
                say(f"Wrote {plot}")


@contextmanager
def _folder(model: str, shape: str | None, *, shared: bool) -> Iterator[Path]:
    """The folder to measure: the model's own, or, where other libraries share it, a float32 copy that all can open."""
    from mlxgen.cli.bench.random_model import random_folder
    from mlxgen.weights import convert, resolve

    with tempfile.TemporaryDirectory() as scratch:
        if shape:
            yield random_folder(Path(scratch, shape), **SHAPES[shape])
        elif shared:
            yield convert(model, Path(scratch, "shared"), dtype="float32").folder
        else:
            yield resolve(model)


def _runs(
    sides: list[str], folder: Path, rows: int, length: int, new_tokens: int, runs: int, dtype: str | None
) -> Iterator[Any]:
    """Each side's runs in turn: a Measurement of one prompt, or a BatchMeasurement of several."""
    if rows == 1:
        from mlxgen.cli.bench.measure import compare

        yield from compare(sides, folder, prompt_tokens=length, new_tokens=new_tokens, runs=runs, dtype=dtype)
        return
    from mlxgen.cli.bench.batches import measure_batch

    for _ in range(runs):
        for side in sides:
            yield measure_batch(
                side, folder, batch_size=rows, lengths=(length, length), new_tokens=new_tokens, dtype=dtype
            )


def _batch_table(measured: list[BatchMeasurement]) -> Iterator[str]:
    """The medians of each side with many prompts."""
    from mlxgen.cli.bench.speed import medians_of

    medians = medians_of(measured)
    yield f"{'':14}{'prompts and decode':>20}{'decode':>12}{'peak memory':>14}"
    for side, m in medians.items():
        yield f"{side:14}{m['tokens_per_second']:>16.1f} t/s{m['decode_tps']:>8.1f} t/s{size(m['memory']):>14}"
    ours = medians.pop("mlxgen")
    for side, m in medians.items():
        whole, decode = ours["tokens_per_second"] / m["tokens_per_second"], ours["decode_tps"] / m["decode_tps"]
        yield f"mlxgen / {side}: prompts and decode {whole:.2f} x, decode {decode:.2f} x"


def _table(measured: list[Measurement], folder: Path, bandwidth: float, dtype: str | None) -> Iterator[str]:
    """The medians of each side, and the share of the memory's bandwidth that reading a token's bytes is."""
    from mlxgen.cli.bench.bandwidth import bytes_per_step
    from mlxgen.cli.bench.speed import medians_of

    context = measured[0].prompt_tokens + measured[0].new_tokens // 2
    least_seconds = bytes_per_step(folder, context, dtype) / bandwidth
    medians = medians_of(measured)
    yield f"{'':14}{'prefill':>12}{'decode':>12}{'first token':>14}{'peak memory':>14}{'bandwidth':>12}"
    for side, m in medians.items():
        yield (
            f"{side:14}{m['prefill_tps']:>8.1f} t/s{m['decode_tps']:>8.1f} t/s{m['first_token'] * 1000:>11.0f} ms"
            f"{size(m['memory']):>14}{_share(m['decode_tps'] * least_seconds):>11}"
        )
    if any(m["decode_tps"] * least_seconds > 1 for m in medians.values()):
        yield "(in cache: what a step reads is read faster than memory, so it comes from the CPU's cache)"
    ours = medians.pop("mlxgen")
    for side, m in medians.items():
        prefill, decode = ours["prefill_tps"] / m["prefill_tps"], ours["decode_tps"] / m["decode_tps"]
        yield f"mlxgen / {side}: prefill {prefill:.2f} x, decode {decode:.2f} x"


def _share(bandwidth: float) -> str:
    """The used share of the memory's bandwidth, which is none where the weights stay in the CPU's cache."""
    return f"{bandwidth:.0%}" if bandwidth <= 1 else "in cache"


def _entries(m: Measurement | BatchMeasurement) -> dict[str, Any]:
    entries = asdict(m)
    if "seconds" in entries:
        del entries["seconds"]  # one for each token: too many to print
        entries["batch_size"] = 1
    else:
        entries["prompt_tokens"] = entries.pop("shortest")
        del entries["longest"]
    return entries


def _curves(
    sides: list[str], folder: Path, runs: int, talk: bool, dtype: str | None
) -> dict[str, list[tuple[int, float]]]:
    """What --plot draws: each side's tokens per second over the context."""
    from mlxgen.cli.bench.measure import compare_decodes
    from mlxgen.cli.bench.speed import curve

    measured = []
    for m in compare_decodes(sides, folder, runs, dtype):
        measured.append(m)
        if talk:
            say(f"{m.side} {len(measured)}/{runs * len(sides)}, through the whole context")
    return {side: curve([m for m in measured if m.side == side]) for side in sides}


def _title(model: str, shape: str | None) -> str:
    if shape:
        return f"GPT-2 {shape}, random weights"
    return Path(model).resolve().name if Path(model).is_dir() else model
