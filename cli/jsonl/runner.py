"""Work on many lines: divide them among the ranks, show how far it is, keep the results, tell what failed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlxgen.cli.jsonl.ranks import Ranks, join_ranks
from mlxgen.cli.jsonl.reader import Line, digest, dumps, read_lines
from mlxgen.cli.jsonl.results import Results, alone
from mlxgen.cli.output import chatty, say
from mlxgen.errors import MlxgenError, OptionError


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a line: entries for the output, or an error.

    tokens: how many were worked on, for the speed. finished: lines that nothing more will come of, so far.
    """

    line: Line
    entries: Mapping[str, Any]
    error: MlxgenError | None = None
    tokens: int = 0
    finished: int = 0

    @property
    def object(self) -> dict[str, Any]:
        if self.error:
            return {"id": self.line.id, "line": self.line.number, "error": str(self.error)}
        return {"id": self.line.id, **self.entries, "request": self.line.request}


UNASKED = ("id", "num_samples")  # of a line, without effect on a single answer

# (the lines, whether the outcomes must keep their order) -> an outcome for each answer
Work = Callable[[Iterable[Line], bool], Iterator[Outcome]]


def process(
    source: str,
    output: str,
    prepare: Callable[[], Work],
    *,
    form: str,
    text_key: str,
    overwrite: bool,
    quiet: bool,
    kinds: Sequence[frozenset[str]],
    options: Mapping[str, Any],
) -> None:
    """Do the work for each line of a file. Raises MlxgenError at the end if a line failed.

    source, output: files, or "-". prepare is called once the files are known to be usable; it opens the model.
    kinds: which entries show that an object is a result of this work. options: what a line gets unless it says
    otherwise; a result of an earlier run counts only if it was made with the same.
    """
    ranks = join_ranks()
    if ranks.size > 1 and "-" in (source, output):
        raise OptionError("several ranks cannot share standard input or output; give files for both")
    if source != "-" and output != "-" and Path(source).resolve() == Path(output).resolve():
        raise OptionError(f"{source} is both input and output; give another file for the output")
    to_stream = output == "-" or (Path(output).exists() and not (Path(output).is_file() or Path(output).is_dir()))
    total = None if source == "-" else sum(1 for _ in read_lines(source, form, text_key))
    with nullcontext() if to_stream else alone(Path(output), ranks):
        results = None if to_stream else Results(Path(output), ranks, kinds, overwrite=overwrite)
        work = prepare()
        wanted: dict[str | int, tuple[int, str]] = {}
        n_lines = 0

        def mine() -> Iterator[Line]:
            nonlocal n_lines
            for line in read_lines(source, form, text_key):
                done: Iterable[int] = ()
                request = digest({**options, **line.entries, **dict.fromkeys(UNASKED)})
                if line.id is not None and not line.error:
                    wanted[line.id] = line.number, request
                    done = results.done.get((line.id, request), ()) if results else ()
                if n_lines % ranks.size == ranks.rank:
                    yield replace(line, done=frozenset(done), request=request)
                n_lines += 1

        talk = chatty(None, quiet) and ranks.rank == 0
        tally = Tally()
        with _bar(total, ranks) if talk else nullcontext() as bar:
            for outcome in work(mine(), results is None):
                tally.add(outcome)
                if results:
                    results.append(outcome.object)
                else:
                    _write(output, dumps(outcome.object))
                if bar:
                    bar.show(outcome.finished, tally.speed)
        if results:
            results.finish(wanted)
        failed = sum(int(count) for count in ranks.gather(str(tally.failed).encode()))
    if talk:
        say(tally.summary)
    if failed and ranks.rank == 0:
        raise MlxgenError(
            f"{failed:,} of {n_lines:,} lines failed: the output has an object with their error; correct them"
            " and run the same command again"
        )


class Tally:
    """What was done so far."""

    def __init__(self) -> None:
        self.answers = self.failed = self.tokens = 0
        self._start = time.perf_counter()

    def add(self, outcome: Outcome) -> None:
        self.answers += outcome.error is None
        self.failed += outcome.error is not None
        self.tokens += outcome.tokens

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    @property
    def speed(self) -> str:
        return f"{self.tokens / self.seconds:,.0f} tokens/s"

    @property
    def summary(self) -> str:
        return (
            f"{self.answers:,} results, {self.failed:,} errors;"
            f" {self.tokens:,} tokens in {self.seconds:.1f} s ({self.speed})"
        )


class _Bar:
    """A progress bar: lines finished, tokens per second, time left."""

    def __init__(self, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("", total=total, speed="")

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, finished: int, speed: str) -> None:
        self._progress.update(self._task, completed=finished, speed=speed)


def _bar(total: int | None, ranks: Ranks) -> _Bar:
    return _Bar(None if total is None else -(-total // ranks.size))


def _write(output: str, content: bytes) -> None:
    if output != "-":
        with open(output, "ab") as file:
            file.write(content)
        return
    if sys.stdout is None:
        raise MlxgenError("standard output is closed; give a file with -o")
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
