"""The plot of `mlxgen bench --plot`: decode tokens per second over context length, one curve per side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

from mlxgen.atomic_file import replacing_file
from mlxgen.errors import OptionError, reason_of
from mlxgen.installation import install_command

Curve = Sequence[tuple[int, float]]  # context length, tokens per second

FORMATS = ("png", "svg", "pdf")


def check_plot(file: Path) -> None:
    """Raise OptionError unless a plot can be drawn and written. Measuring takes minutes, so this comes first."""
    if _format(file) not in FORMATS:
        known = ", ".join(f".{name}" for name in FORMATS)
        raise OptionError(f"{file}: unknown format; end the plot's name in one of {known}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise OptionError(f"a plot needs matplotlib ({error}): `{install_command('matplotlib')}`") from None
    try:
        NamedTemporaryFile(prefix=file.name, dir=file.parent).close()  # permission bits miss a read-only disk
    except OSError as error:
        raise OptionError(f"{file}: cannot be written ({reason_of(error)}); give a file in a writable folder") from None


def draw_plot(file: Path, title: str, curves: Mapping[str, Curve]) -> None:
    """Draw one curve per side, and replace the file as a whole."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)  # never opens a window, whatever the user's settings are
    axes = figure.add_subplot()
    for side, curve in curves.items():
        contexts, speeds = zip(*curve, strict=True)
        axes.plot(contexts, speeds, marker=".", label=side, gid=side)
    axes.set_title(title, parse_math=False)  # a model's name may contain a $
    axes.set(xlabel="context (tokens)", ylabel="tokens per second")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    with replacing_file(file) as part, rc_context({"svg.fonttype": "none"}):  # text stays text in an SVG
        figure.savefig(part, format=_format(file))


def _format(file: Path) -> str:
    return file.suffix.lower().removeprefix(".")
