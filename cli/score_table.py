"""`mlxgen score` on several files: the scores of each file and their total, as a table, CSV or JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlxgen
from mlxgen.cli.jsonl.input_file import STANDARD
from mlxgen.cli.jsonl.score_lines import ACCURACIES, SCORE_OPTIONS, Asked, input_of_lines, read_line
from mlxgen.cli.options import open_model
from mlxgen.cli.output import stdout_is_terminal, write, write_json
from mlxgen.cli.progress import ProgressBar, progress_bar
from mlxgen.cli.prompt import text_of
from mlxgen.errors import MlxgenError, OptionError

if TYPE_CHECKING:
    from mlxgen.generation.request import Progress
    from mlxgen.model import Model
    from mlxgen.ranked_choices import RankedChoices
    from mlxgen.scoring import ScoreTotal

# The columns of CSV, and the keys of JSON beside `file`. Those of questions are empty where there is none, and the
# others where there is no text.
OF_TEXTS = ("texts", "n_scored", "n_bytes", "total", "loss", "bits_per_byte", "perplexity")
OF_QUESTIONS = ("questions", *ACCURACIES)
# The columns of the table for people: heading, entry, format.
SHOWN = (
    ("tokens", "n_scored", "{:,}"),
    ("nats/token", "loss", "{:.4f}"),
    ("bits/byte", "bits_per_byte", "{:.4f}"),
    ("perplexity", "perplexity", "{:.4f}"),
    ("questions", "questions", "{:,}"),
    ("acc", "acc", "{:.4f}"),
    ("acc_norm", "acc_norm", "{:.4f}"),
    ("acc_bytes", "acc_bytes", "{:.4f}"),
)
TOTAL = "total"
LONG_TEXTS = 8_000  # characters from which a progress bar is worth showing


@dataclass(frozen=True, slots=True)
class File:
    """A file that was read: its name, and what to score in it, each with a name for errors."""

    name: str
    asked: list[tuple[str, Asked]]

    @property
    def size(self) -> int:
        return sum(asked.size for _, asked in self.asked)


@dataclass(slots=True)
class Result:
    """The scores in a file, or in all of them."""

    name: str
    totals: list[ScoreTotal] = field(default_factory=list)
    questions: list[RankedChoices] = field(default_factory=list)

    @property
    def entries(self) -> dict[str, int | float | None]:
        """By the names in OF_TEXTS and OF_QUESTIONS; None where there is nothing."""
        texts, questions = mlxgen.sum_scores(self.totals), mlxgen.accuracy(self.questions)
        return {
            **{name: getattr(texts, name) if texts.texts else None for name in OF_TEXTS},
            **{name: getattr(questions, name) if questions.questions else None for name in OF_QUESTIONS},
        }


def score_files(contents: Sequence[tuple[str, bytes, bool]], given: Mapping[str, Any]) -> None:
    """Score files and print a line for each, and one for all of them.

    contents: each file's name, its content, and whether this is JSONL with many texts. given: the options of `mlxgen
    score`. Raises an error for an unusable file before any is scored.
    """
    from mlxgen.scoring import checked_stride

    files = [_read(*content, given) for content in contents]
    model = open_model(given)
    checked_stride(model, given["stride"])
    rows_on_terminal = given["as_csv"] and stdout_is_terminal()  # no bar between them
    results = _results(model, files, quiet=given["quiet"] or rows_on_terminal)
    if given["as_csv"]:
        _write_csv(results)
    elif given["as_json"]:
        *found, total = results
        rows = [{"file": result.name, **result.entries} for result in found]
        write_json({"model": model.label, "files": rows, "total": total.entries})
    else:
        _write_table(list(results))


def _read(source: str, content: bytes, is_jsonl: bool, given: Mapping[str, Any]) -> File:
    name = "standard input" if source == STANDARD else source
    options = {option: given[option] for option in SCORE_OPTIONS}
    if not is_jsonl:
        text = text_of(content, source)
        if not text:
            raise OptionError(f"{name} is empty")
        return File(source, [(name, Asked(text, [], None, "", options))])
    asked = []
    for line in input_of_lines(source, content).lines():
        at = f"{name}, line {line.number}"
        try:
            asked.append((at, read_line(line, given)))
        except MlxgenError as error:
            raise OptionError(f"{at}: {error}") from None
    if not asked:
        raise OptionError(f"{name} is empty")
    unanswered = next((at for at, one in asked if one.text is None and one.answer is None), None)
    if unanswered:
        raise OptionError(f"{unanswered} has choices and no answer, which the accuracy in a table needs")
    return File(source, asked)


def _results(model: Model, files: Sequence[File], *, quiet: bool) -> Iterator[Result]:
    """The result of each file as it is known, then the total."""
    bar = progress_bar("Scoring", quiet=quiet, least=LONG_TEXTS)
    whole, before = sum(file.size for file in files), 0
    total = Result(TOTAL)
    for file in files:
        result = Result(file.name)
        for at, asked in file.asked:
            try:
                found = asked.score(model, _part_of(bar, before, asked.size, whole, file.name))
            except MlxgenError as error:
                raise type(error)(f"{at}: {error}") from None
            if isinstance(found, mlxgen.Score):
                result.totals.append(found.sums)
            else:
                result.questions.append(found)
            before += asked.size
            if bar:
                bar(before, whole, Path(file.name).name)
        total.totals += result.totals
        total.questions += result.questions
        yield result
    yield total


def _part_of(bar: ProgressBar | None, before: int, size: int, whole: int, name: str) -> Progress | None:
    """The progress of one text as a part of all of them."""
    return bar and (lambda done, total: bar(before + size * done // total, whole, Path(name).name))


def _write_csv(results: Iterator[Result]) -> None:
    """Write each row as it is known."""
    names = ("file", *OF_TEXTS, *OF_QUESTIONS)
    _write_row(names)
    for result in results:
        entries = {"file": result.name, **result.entries}
        _write_row(["" if entries[name] is None else entries[name] for name in names])


def _write_row(cells: Sequence[object]) -> None:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    write(line.getvalue())


def _write_table(results: Sequence[Result]) -> None:
    from rich.cells import cell_len

    entries = [result.entries for result in results]
    shown = [column for column in SHOWN if entries[-1][column[1]] is not None]
    rows = [["file", *(heading for heading, _, _ in shown)]]
    for result, values in zip(results, entries, strict=True):
        found = ((form, values[name]) for _, name, form in shown)
        rows.append([_one_line(result.name), *("-" if value is None else form.format(value) for form, value in found)])
    name_width = max(cell_len(name) for name, *_ in rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        numbers = "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        write(name + " " * (name_width - cell_len(name)) + numbers + "\n")


def _one_line(name: str) -> str:
    return name.replace("\n", "\\n")
