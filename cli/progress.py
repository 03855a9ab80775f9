"""The progress bar of long work: prefill, scoring, converting, the lines of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mlxgen.cli.output import escaped, for_stderr, say, stderr_is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


LONG_PREFILL = 512  # prompt tokens from which a bar is worth showing


def prefill_bar(quiet: bool) -> ProgressBar | None:
    """The bar for a long prompt: the `progress` of mlxgen.generate."""
    return progress_bar("Reading the prompt", quiet=quiet, least=LONG_PREFILL)


def progress_bar(label: str, *, quiet: bool, least: int = 0) -> ProgressBar | None:
    """A bar for work of at least `least` units. None with --quiet, or if standard error is not a terminal."""
    return None if quiet or not stderr_is_terminal() else ProgressBar(label, least)


class ProgressBar:
    """A bar on standard error, called as bar(done, total, note). It can be used for one piece of work after another.

    It appears with the first call, and disappears when all is done, at `stop`, and when the click command ends, also
    by an error or Ctrl-C. While it is there, nothing else may be written to the terminal.
    """

    def __init__(self, label: str, least: int = 0) -> None:
        self._label, self._least = label, least
        self._drawn: tuple[Progress, TaskID] | None = None
        if command := click.get_current_context(silent=True):
            command.call_on_close(self.stop)

    def __call__(self, done: int, total: int | None, note: str = "") -> None:
        """Show how much is done. total: None where it is not known."""
        if total is not None and total < self._least:
            return
        note = escaped(note)
        if self._drawn is None:
            self._start(done, total, note)
        else:
            progress, task = self._drawn
            progress.update(task, completed=done, total=total, note=note)
        if done == total:
            self.stop()

    def say(self, text: str) -> None:
        """Write a line above the bar."""
        if self._drawn is None:
            say(text)
        else:
            progress, _ = self._drawn
            progress.console.print(for_stderr(text), soft_wrap=True, markup=False, emoji=False, highlight=False)

    def stop(self) -> None:
        """Remove the bar and show the cursor again."""
        if self._drawn is not None:
            progress, _ = self._drawn
            self._drawn = None
            progress.stop()

    def _start(self, done: int, total: int | None, note: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        rest_of_line = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False, table_column=rest_of_line),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,  # the answer is written as it is
            expand=True,
        )
        self._drawn = progress, progress.add_task(self._label, completed=done, total=total, note=note)
        progress.start()
