"""`mlxgen score` on many texts: an object with scores for each line of a JSONL file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import mlxgen
from mlxgen.cli.jsonl.input_file import InputFile, InputLine
from mlxgen.cli.jsonl.run import LineResult, ProcessLines, run_lines
from mlxgen.cli.options import open_model
from mlxgen.errors import MlxgenError, OptionError

if TYPE_CHECKING:
    from mlxgen.model import Model
    from mlxgen.scoring import Score

LINE_KEYS = ("text", "context", "choices", "id", "metadata")
RESULT_KEYS = (frozenset({"total"}), frozenset({"choices"}))  # of a text, of a list of choices
SCORE_OPTIONS = ("context", "stride", "bos")  # keyword arguments of mlxgen.score


def score_file(source: str, given: Mapping[str, Any], content: bytes | None = None) -> None:
    """Score each line. Raises MlxgenError at the end if a line failed.

    given: the options of `mlxgen score`. content: see `InputFile`.
    """

    def prepare() -> ProcessLines:
        model = open_model(given)
        return lambda lines, _ordered: _score_lines(model, lines, given)

    run_lines(
        InputFile(source, format="jsonl", text_key="text", content=content),
        given["output"],
        prepare,
        overwrite=given["overwrite"],
        quiet=given["quiet"],
        result_keys=RESULT_KEYS,
        options={name: given[name] for name in (*SCORE_OPTIONS, "per_token", "model", "revision", "dtype")},
    )


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


def _score_lines(model: Model, lines: Iterable[InputLine], given: Mapping[str, Any]) -> Iterator[LineResult]:
    for number, line in enumerate(lines, start=1):
        if line.done:
            continue
        try:
            entries, n_tokens = _score_line(model, line, given)
        except MlxgenError as error:
            yield LineResult(line, {}, error, finished=number)
        else:
            yield LineResult(line, entries, tokens=n_tokens, finished=number)


def _score_line(model: Model, line: InputLine, given: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """The entries of a line's result, and how many tokens were scored."""
    asked = line.checked_entries(LINE_KEYS)
    if ("text" in asked) == ("choices" in asked):
        raise OptionError("a line needs either text or choices")
    texts = asked["choices"] if "choices" in asked else [asked["text"]]
    options = {name: given[name] for name in SCORE_OPTIONS} | {"context": asked.get("context", given["context"])}
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str | list) for text in texts):
        raise OptionError("text must be text or token ids, and choices a list of them")
    if not isinstance(options["context"], str | list):
        raise OptionError("context must be text or token ids")
    scores = [mlxgen.score(model, text, **options) for text in texts]
    results = [score_entries(score, per_token=given["per_token"]) for score in scores]
    entries: dict[str, Any] = results[0] if "text" in asked else {"choices": results, **_rankings(scores)}
    if "metadata" in asked:
        entries["metadata"] = asked["metadata"]
    return entries, sum(score.n_scored for score in scores)


def _rankings(scores: list[Score]) -> dict[str, list[int]]:
    """The numbers of the choices, the most likely first: by log-likelihood, and by that per byte."""
    numbers = range(len(scores))
    return {
        "ranking": sorted(numbers, key=lambda at: -scores[at].total),
        "ranking_per_byte": sorted(numbers, key=lambda at: scores[at].bits_per_byte),
    }
