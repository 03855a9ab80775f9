"""Where two traces of one prompt part: by their tokens, or by their texts where the vocabularies differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mlxgen.errors import OptionError
from mlxgen.text.detokenizer import common_length
from mlxgen.tracing.record import Trace


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two runs part.

    by: "token" where both models spell texts with the same tokens, otherwise "text". first, second: the index of the
    step with the first different token of each run, or, by text, of the step whose token has the first different
    character; None for a run that had ended before. text: what both wrote until then.
    """

    by: Literal["token", "text"]
    first: int | None
    second: int | None
    text: str


def parting(first: Trace, second: Trace) -> Parting | None:
    """Where two traces of the same prompt part; None if they do not, as far as both go.

    Raises OptionError if their prompts differ.
    """
    ids_mean_others = not isinstance(first.prompt, str) and _spelt(first) != _spelt(second)
    if first.prompt != second.prompt or ids_mean_others:
        raise OptionError("the two traces have different prompts; compare traces of the same text")
    return _by_token(first, second) if _same_vocabulary(first, second) else _by_text(first, second)


def _spelt(trace: Trace) -> list[str]:
    return [token.piece for token in trace.prompt_tokens]


def _same_vocabulary(first: Trace, second: Trace) -> bool:
    """Whether the prompt has the same tokens in both, and no id or spelling means two tokens in what they wrote."""
    if first.prompt_tokens != second.prompt_tokens:
        return False
    pairs = {(token.id, token.piece) for token in [*first.prompt_tokens, *first.tokens, *second.tokens]}
    ids, pieces = ({pair[part] for pair in pairs} for part in (0, 1))
    return len(ids) == len(pieces) == len(pairs)


def _by_token(first: Trace, second: Trace) -> Parting | None:
    pairs = zip(first.tokens, second.tokens, strict=False)
    at = next((at for at, (one, other) in enumerate(pairs) if one.id != other.id), None)
    return None if at is None else Parting("token", at, at, "".join(step.text for step in first.steps[:at]))


def _by_text(first: Trace, second: Trace) -> Parting | None:
    common = first.text[: common_length(first.text, second.text)]
    for run in (first, second):
        if len(run.text) == len(common) and run.finish_reason != "stop":
            return None  # the limit of steps, or of the model, came before a difference
    if first.text == second.text:
        return None
    return Parting("text", _step_after(first, len(common)), _step_after(second, len(common)), common)


def _step_after(trace: Trace, length: int) -> int | None:
    """The step that added the character after the first `length`; the end token's if there is none."""
    end = 0
    for step in trace.steps:
        end += len(step.text)
        if end > length:
            return step.index
    return trace.steps[-1].index if trace.steps and not trace.steps[-1].text else None
