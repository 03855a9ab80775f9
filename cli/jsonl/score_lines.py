"""`mlxgen score` on many texts: an object with scores for each line of a JSONL file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlxgen
from mlxgen.cli.jsonl.input_file import InputFile, InputLine
from mlxgen.cli.jsonl.run import LineResult, ProcessLines, run_lines
from mlxgen.cli.options import open_model
from mlxgen.errors import MlxgenError, OptionError

if TYPE_CHECKING:
    from mlxgen.generation.request import Progress
    from mlxgen.model import Model
    from mlxgen.ranked_choices import RankedChoices
    from mlxgen.scoring import Score

LINE_KEYS = ("text", "context", "prompt", "choices", "answer", "delimiter", "id", "metadata")
RESULT_KEYS = (frozenset({"total"}), frozenset({"choices"}))  # of a text, of a list of choices
SCORE_OPTIONS = ("context", "stride", "bos")  # keyword arguments of mlxgen.score
ACCURACIES = ("acc", "acc_norm", "acc_bytes")


def score_file(source: str, given: Mapping[str, Any], content: bytes | None = None) -> None:
    """Score each line. Raises MlxgenError at the end if a line failed.

    given: the options of `mlxgen score`. content: see `InputFile`.
    """

    def prepare() -> ProcessLines:
        model = open_model(given)
        return lambda lines, _ordered: _score_lines(model, lines, given)

    options = (*SCORE_OPTIONS, "delimiter", "per_token", "model", "revision", "dtype", "adapter")
    run_lines(
        input_of_lines(source, content),
        given["output"],
        prepare,
        overwrite=given["overwrite"],
        quiet=given["quiet"],
        result_keys=RESULT_KEYS,
        options={name: given[name] for name in options},
    )


def input_of_lines(source: str, content: bytes | None = None) -> InputFile:
    """A JSONL file of texts and questions."""
    return InputFile(source, format="jsonl", text_key="text", content=content)


def score_entries(score: Score, *, per_token: bool) -> dict[str, Any]:
    """A score as JSON entries. Infinite numbers, which JSON does not have, become null."""
    tokens = {"tokens": score.tokens, "logprobs": score.logprobs, "ranks": score.ranks} if per_token else {}
    return {
        **tokens,
        "n_scored": score.n_scored,
        "n_bytes": score.n_bytes,
        "total": score.total,
        "loss": score.loss,
        "bits_per_byte": score.bits_per_byte if math.isfinite(score.bits_per_byte) else None,
        "perplexity": score.perplexity if math.isfinite(score.perplexity) else None,
    }


@dataclass(frozen=True, slots=True)
class Asked:
    """What a line asks for: the score of a text, or a ranking of choices."""

    text: str | list[int] | None
    choices: list[str | list[int]]
    answer: int | str | None
    delimiter: str
    options: dict[str, Any]  # of mlxgen.score

    @property
    def size(self) -> int:
        """How many characters, or tokens, are scored."""
        return sum(map(len, self.choices if self.text is None else [self.text]))

    def score(self, model: Model, progress: Progress | None = None) -> Score | RankedChoices:
        """progress: called for a text with (tokens done, total tokens). Raises MlxgenError."""
        if self.text is not None:
            return mlxgen.score(model, self.text, progress=progress, **self.options)
        return mlxgen.rank_choices(
            model, choices=self.choices, answer=self.answer, delimiter=self.delimiter, **self.options
        )


def read_line(line: InputLine, given: Mapping[str, Any]) -> Asked:
    """Check what a line asks for. Raises its error, or OptionError."""
    from mlxgen.ranked_choices import check_answer

    asked = line.checked_entries(LINE_KEYS)
    if ("text" in asked) == ("choices" in asked):
        raise OptionError("a line needs either text or choices")
    texts = asked["choices"] if "choices" in asked else [asked["text"]]
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str | list) for text in texts):
        raise OptionError("text must be text or token ids, and choices a list of them")
    if not all(texts):
        raise OptionError("there is nothing to score: a text is empty")
    if "context" in asked and "prompt" in asked:
        raise OptionError("context and prompt are two names for the same thing; give one of them")
    context = asked.get("context", asked.get("prompt", given["context"]))
    if not isinstance(context, str | list):
        raise OptionError("context must be text or token ids")
    if "text" in asked and (extra := {"answer", "delimiter"} & set(asked)):
        raise OptionError(f"{min(extra)} belongs to choices, and the line has none")
    if not isinstance(delimiter := asked.get("delimiter", given["delimiter"]), str):
        raise OptionError("delimiter must be text")
    return Asked(
        text=asked.get("text"),
        choices=asked.get("choices", []),
        answer=check_answer(texts, asked.get("answer")),
        delimiter=delimiter,
        options={name: given[name] for name in SCORE_OPTIONS} | {"context": context},
    )


def _score_lines(model: Model, lines: Iterable[InputLine], given: Mapping[str, Any]) -> Iterator[LineResult]:
    for number, line in enumerate(lines, start=1):
        if line.done:
            continue
        try:
            entries, n_tokens = _result(model, line, given)
        except MlxgenError as error:
            yield LineResult(line, {}, error, finished=number)
        else:
            yield LineResult(line, entries, tokens=n_tokens, finished=number)


def _result(model: Model, line: InputLine, given: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """The entries of a line's result, and how many tokens were scored."""
    found = read_line(line, given).score(model)
    entries: dict[str, Any]
    if isinstance(found, mlxgen.Score):
        scores, entries = [found], score_entries(found, per_token=given["per_token"])
    else:
        scores = found.scores
        entries = {
            "choices": [score_entries(score, per_token=given["per_token"]) for score in scores],
            "ranking": found.ranking,
            "ranking_per_character": found.ranking_per_character,
            "ranking_per_byte": found.ranking_per_byte,
        }
        if found.answer is not None:
            entries |= {"answer": found.answer} | {name: getattr(found, name) for name in ACCURACIES}
    if "metadata" in line.entries:
        entries["metadata"] = line.entries["metadata"]
    return entries, sum(score.n_scored for score in scores)
