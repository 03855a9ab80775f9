"""Two traces of one prompt on the terminal, side by side, with the first token where they part."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mlxgen.cli.output import visible
from mlxgen.cli.terminal_console import TerminalConsole
from mlxgen.cli.trace_view import percent, print_end
from mlxgen.tracing.parting import Parting, parting
from mlxgen.tracing.record import Trace, TracedStep

WIDE = 78  # columns from which on each run has both of its probabilities
TOKEN_WIDTHS = {60: 16, 50: 11, 0: 6}  # of a token, by the least number of columns of the terminal
NAMES = ("A", "B")


def print_comparison(first: Trace, second: Trace, *, candidates: int) -> None:
    """Print the tokens of both, then the first `candidates` of the step where they part, then both texts."""
    console = TerminalConsole()
    runs = (first, second)
    place = parting(first, second)
    for name, run in zip(NAMES, runs, strict=True):
        console.print(Text(f"{name} ", style="bold").append(f"{run.model}, seed {run.seed}", style="not bold"))
    console.print()
    console.print(_steps(console, runs, place))
    console.print()
    console.print(_told(runs, place))
    if place is not None and place.first is not None and place.second is not None:
        console.print()
        console.print(_candidates(console, first.steps[place.first], second.steps[place.second], candidates))
    for name, run in zip(NAMES, runs, strict=True):
        print_end(console, run, f"Text of {name}")


def _steps(console: Console, runs: tuple[Trace, Trace], place: Parting | None) -> Table:
    """A row for each step, with the token of each run and its probabilities; the tokens that part are marked."""
    wide = console.width >= WIDE
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("step", justify="right", width=4)
    for name in NAMES:
        table.add_column("", width=1)
        table.add_column(name, width=_token_width(console), no_wrap=True, overflow="ellipsis")
        table.add_column("model", justify="right", width=7)
        if wide:
            table.add_column("rules", justify="right", width=7)
    marked = (None, None) if place is None else (place.first, place.second)
    for at in range(max(len(run.steps) for run in runs)):
        row: list[str | Text] = [str(at + 1)]
        for run, mark in zip(runs, marked, strict=True):
            step = run.steps[at] if at < len(run.steps) else None
            style = "bold" if at == mark else ""
            row += [Text(">" if at == mark else "", style), Text(visible(step.chosen.text) if step else "", style)]
            row.append(percent(step.chosen.probability) if step else "")
            if wide:
                row.append(percent(step.chosen.rule_probability) if step else "")
        table.add_row(*row)
    return table


def _told(runs: tuple[Trace, Trace], place: Parting | None) -> Text:
    """Where they part, in words."""
    if place is None:
        return Text("They do not part: both write the same, as far as both go.")
    if place.by == "token" and place.first is not None:
        first, second = (run.steps[place.first].chosen.text for run in runs)
        return Text(f"They part at step {place.first + 1}: A chose {visible(first)}, B chose {visible(second)}.")
    chose = []
    for name, run, at in zip(NAMES, runs, (place.first, place.second), strict=True):
        what = "had ended" if at is None else f"chose {visible(run.steps[at].chosen.text)} at step {at + 1}"
        chose.append(f"{name} {what}")
    return Text(f"Their texts part (their tokens differ in any case): {', '.join(chose)}.")


def _candidates(console: Console, first: TracedStep, second: TracedStep, most: int) -> Table:
    """The most probable tokens of the two steps, by their texts, with their probabilities in each run."""
    wide = console.width >= WIDE
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("", width=2)
    table.add_column("token", width=_token_width(console), no_wrap=True, overflow="ellipsis")
    for name in NAMES:
        table.add_column(f"{name} model", justify="right", width=8)
        if wide:
            table.add_column(f"{name} rules", justify="right", width=8)
    steps = (first, second)
    known = [{one.text: one for one in reversed(step.candidates)} for step in steps]
    listed = [step.chosen.text for step in steps]
    listed += [one.text for step in steps for one in step.candidates[:most]]
    for text in sorted(set(listed), key=lambda text: -max(c[text].probability for c in known if text in c)):
        marks = "".join(name for name, step in zip(NAMES, steps, strict=True) if step.chosen.text == text)
        row: list[str | Text] = [Text(marks, "bold"), Text(visible(text), "bold" if marks else "")]
        for candidates in known:
            one = candidates.get(text)
            row.append(percent(one.probability) if one else "-")
            if wide:
                row.append("-" if one is None else "cut" if one.cut_by else percent(one.rule_probability))
        table.add_row(*row)
    return table


def _token_width(console: Console) -> int:
    return next(width for least, width in TOKEN_WIDTHS.items() if console.width >= least)
