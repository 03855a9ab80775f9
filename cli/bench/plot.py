"""The plot of `mlxgen bench --plot`: decode tokens per second against context length, a curve for each side."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlxgen.errors import OptionError

Curve = Sequence[tuple[int, float]]  # context length, tokens per second

FORMATS = ("png", "svg", "pdf")


def check(file: Path) -> None:
    """Raise OptionError unless a plot can be drawn and written there: measuring takes minutes."""
    if _format(file) not in FORMATS:
        known = ", ".join(f".{name}" for name in FORMATS)
        raise OptionError(f"{file}: a plot is written in the format that its name ends in; give it one of {known}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise OptionError(f'a plot needs matplotlib ({error}): pip install "mlxgen[plot]"') from None
    unfinished = _unfinished(file)
    try:
        unfinished.touch(exist_ok=False)  # tried, as permission bits do not tell of a read-only disk
        unfinished.unlink()
    except OSError as error:
        why = error.strerror or error
        raise OptionError(
            f"{file}: cannot be written ({why}); give a file in a folder that can be written to"
        ) from None


def draw(file: Path, title: str, curves: Mapping[str, Curve]) -> None:
    """Draw beside the file's place and rename into it: a crash leaves the old one."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)  # never a window, whatever the user's settings say
    axes = figure.add_subplot()
    for side, curve in curves.items():
        contexts, speeds = zip(*curve, strict=True)
        axes.plot(contexts, speeds, marker=".", label=side, gid=side)
    axes.set_title(title, parse_math=False)  # a model's name may have a $
    axes.set(xlabel="context (tokens)", ylabel="tokens per second")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    unfinished = _unfinished(file)
    try:
        with unfinished.open("xb") as out, rc_context({"svg.fonttype": "none"}):  # text stays text in an SVG
            figure.savefig(out, format=_format(file))
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)


def _format(file: Path) -> str:
    return file.suffix.lower().removeprefix(".")


def _unfinished(file: Path) -> Path:
    return file.with_name(f"{file.name}.{secrets.token_hex(4)}.part")  # nobody's file
