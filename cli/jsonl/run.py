"""A run over the lines of a file: share them among processes, show the progress, write results and failures."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlxgen.cli.jsonl.file_lock import locked
from mlxgen.cli.jsonl.input_file import STANDARD, InputFile, InputLine
from mlxgen.cli.jsonl.output_file import OutputFile, json_line
from mlxgen.cli.jsonl.process_group import ProcessGroup, join_group
from mlxgen.cli.output import chatty, say, stdout_is_terminal, write
from mlxgen.cli.progress import progress_bar
from mlxgen.errors import MlxgenError, OptionError


@dataclass(frozen=True, slots=True)
class LineResult:
    """One result of a line, or why there is none.

    entries: what the output gets, besides id and request. tokens: how many were processed or generated for it.
    finished: how many lines need nothing more, so far.
    """

    line: InputLine
    entries: Mapping[str, Any]
    error: MlxgenError | None = None
    tokens: int = 0
    finished: int = 0

    @property
    def object(self) -> dict[str, Any]:
        """The object for the output."""
        if self.error:
            return {"id": self.line.id, "line": self.line.number, "error": str(self.error)}
        return {"id": self.line.id, **self.entries, "request": self.line.request}


# Takes the lines, and whether the results must come in their order.
ProcessLines = Callable[[Iterable[InputLine], bool], Iterator[LineResult]]

SECONDS_BETWEEN_LINES = 10  # of progress, where there is no terminal for a bar

NOT_IN_REQUEST = ("id", "num_samples")  # entries of a line that make no difference to a single result


def run_lines(
    source: InputFile,
    output: str,
    prepare: Callable[[], ProcessLines],
    *,
    overwrite: bool,
    quiet: bool,
    result_keys: Sequence[frozenset[str]],
    options: Mapping[str, Any],
) -> None:
    """Process each line of a file. Raises MlxgenError at the end if a line failed.

    output: a file, or "-". prepare: opens the model; it is called once the files are known to be usable. result_keys:
    see `OutputFile`. options: what applies to a line unless it says otherwise; a result of an earlier run counts only
    if it was made with the same.
    """
    group = join_group()
    _check_places(source.path, output, group)
    to_stream = output == STANDARD or _is_device(Path(output))
    total = None if source.path == STANDARD else sum(1 for _ in source.lines())
    with nullcontext() if to_stream else locked(Path(output), group):
        results = None if to_stream else OutputFile(Path(output), group, result_keys, overwrite=overwrite)
        process_lines = prepare()
        asked: dict[str | int, tuple[int, str]] = {}
        n_lines = 0

        def lines_of_this_process() -> Iterator[InputLine]:
            nonlocal n_lines
            for line in source.lines():
                done: Iterable[int] = ()
                request = _hash({**options, **line.entries, **dict.fromkeys(NOT_IN_REQUEST)})
                if line.id is not None and not line.error:
                    asked[line.id] = line.number, request
                    done = results.done.get((line.id, request), ()) if results else ()
                if n_lines % group.size == group.rank:
                    yield replace(line, request=request, done=frozenset(done))
                n_lines += 1

        launched = group.size > 1  # mlx.launch passes lines on, so there is no terminal for a bar
        talk = not quiet and group.rank == 0 and (launched or chatty(None, quiet))
        bar = progress_bar("Lines", quiet=not talk or (output == STANDARD and stdout_is_terminal()))
        share = None if total is None else -(-total // group.size)
        tally, said = Tally(), 0.0
        for result in process_lines(lines_of_this_process(), results is None):
            tally.add(result)
            if results:
                results.append(result.object)
            else:
                _write(output, json_line(result.object))
            if bar:
                bar(result.finished, share, tally.speed)
            elif talk and launched and tally.seconds - said >= SECONDS_BETWEEN_LINES:
                said = tally.seconds
                say(f"Lines: {result.finished * group.size:,} of {total:,}, {tally.speed} on this machine")
        if bar:
            bar.stop()
        if results:
            results.finish(asked)
        counts = [tuple(map(int, data.split())) for data in group.all_gather(tally.counts)]
        tally.results, tally.failed, tally.tokens = (sum(column) for column in zip(*counts, strict=True))
    failed = tally.failed
    if talk:
        say(tally.summary)
    if failed and group.rank == 0:
        raise MlxgenError(
            f"{failed:,} of {n_lines:,} lines failed; the output says why. Correct them and run the same command again"
        )


def _check_places(source: str, output: str, group: ProcessGroup) -> None:
    if group.size > 1 and STANDARD in (source, output):
        raise OptionError("several processes cannot share standard input or output; give files for both")
    if STANDARD not in (source, output) and Path(source).resolve() == Path(output).resolve():
        raise OptionError(f"{source} is both input and output; give another file for the output")


def _is_device(path: Path) -> bool:
    """Whether it can be written but not read again, such as /dev/null or a pipe."""
    return path.exists() and not path.is_file() and not path.is_dir()


class Tally:
    """What a run has done so far."""

    def __init__(self) -> None:
        self.results = self.failed = self.tokens = 0
        self._start = time.perf_counter()

    def add(self, result: LineResult) -> None:
        self.results += result.error is None
        self.failed += result.error is not None
        self.tokens += result.tokens

    @property
    def counts(self) -> bytes:
        """Results, failures and tokens, as another process gets them."""
        return f"{self.results} {self.failed} {self.tokens}".encode()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    @property
    def speed(self) -> str:
        return f"{self.tokens / self.seconds:,.0f} tokens/s"

    @property
    def summary(self) -> str:
        return (
            f"{self.results:,} results, {self.failed:,} errors;"
            f" {self.tokens:,} tokens in {self.seconds:.1f} s ({self.speed})"
        )


def _hash(request: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(request, sort_keys=True).encode(), digest_size=8).hexdigest()


def _write(output: str, content: bytes) -> None:
    if output != STANDARD:
        with open(output, "ab") as file:
            file.write(content)
        return
    if sys.stdout is None:
        raise MlxgenError("standard output is closed; give a file with -o")
    if stdout_is_terminal():
        write(content.decode())
        return
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
