"""Questions with several possible answers: which one the model finds most likely, and how often it is right.

The measures are those of lm-evaluation-harness's multiple-choice tasks (`process_results` in lm_eval/api/task.py). With
ll the log-likelihood of a choice after the context, the model answers with the choice that has the highest

    acc         ll
    acc_norm    ll / number of its characters
    acc_bytes   ll / number of its UTF-8 bytes

A tie goes to the choice that comes first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mlxgen.continuations import score_continuations
from mlxgen.errors import OptionError, shown
from mlxgen.model import Model, encode_prompt
from mlxgen.scoring import Score, context_tokens, make_score, score

Text = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class RankedChoices:
    """The choices of a question, and how likely each is after it.

    choices: their texts, whose lengths count for the rankings. scores: of each, in the same order. answer: the number
    of the right one, from 0; None if it is not known.
    """

    choices: list[str]
    scores: list[Score] = field(repr=False)
    answer: int | None = None

    @property
    def ranking(self) -> list[int]:
        """The numbers of the choices, the most likely first."""
        return self._ranked([1] * len(self.choices))

    @property
    def ranking_per_character(self) -> list[int]:
        """The same by log-likelihood per character, so that long choices are not at a disadvantage."""
        return self._ranked([len(choice) for choice in self.choices])

    @property
    def ranking_per_byte(self) -> list[int]:
        """The same by log-likelihood per byte of UTF-8."""
        return self._ranked([len(choice.encode()) for choice in self.choices])

    @property
    def acc(self) -> int | None:
        """1 if the right choice is the most likely, otherwise 0. None if the right one is not known."""
        return self._right(self.ranking)

    @property
    def acc_norm(self) -> int | None:
        """The same by log-likelihood per character."""
        return self._right(self.ranking_per_character)

    @property
    def acc_bytes(self) -> int | None:
        """The same by log-likelihood per byte."""
        return self._right(self.ranking_per_byte)

    def _ranked(self, lengths: list[int]) -> list[int]:
        means = [score.total / length for score, length in zip(self.scores, lengths, strict=True)]
        return sorted(range(len(means)), key=lambda at: -means[at])

    def _right(self, ranking: list[int]) -> int | None:
        return None if self.answer is None else int(ranking[0] == self.answer)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The shares of questions that are answered right, from 0 to 1; NaN for no questions."""

    questions: int
    acc: float
    acc_norm: float
    acc_bytes: float


def rank_choices(
    model: Model,
    context: Text,
    choices: Sequence[Text],
    *,
    answer: int | str | None = None,
    delimiter: str = "",
    stride: int | None = None,
    bos: bool = True,
) -> RankedChoices:
    """Score each choice after the context, and rank them.

    answer: the right choice, by its number from 0 or its text. delimiter: text between the context and each choice,
    such as a space; it is scored with the choice, and does not count for its length. Without one, a choice begins with
    its own space. context and choices are text or token ids, tokenized separately. The context is cut off at its
    beginning if it does not fit into the position table with a choice; with a stride, such a context is read in windows
    instead, see score(). bos: see there.
    Raises OptionError for no choices, an empty one, and an answer that is not one of them.
    """
    known = check_answer(choices, answer)
    texts = [choice if isinstance(choice, str) else model.tokenizer.decode(choice) for choice in choices]
    if not all(texts):
        raise OptionError(f"choice {texts.index('')} is empty")
    if delimiter:
        ahead = model.tokenizer.encode(delimiter)
        choices = [delimiter + choice if isinstance(choice, str) else [*ahead, *choice] for choice in choices]
    return RankedChoices(texts, _scores(model, context, choices, stride, bos), known)


def _scores(model: Model, context: Text, choices: Sequence[Text], stride: int | None, bos: bool) -> list[Score]:
    """The score of each choice. The context is processed once for all of them."""
    before, rows = context_tokens(model, context, bos=bos), [encode_prompt(model, choice) for choice in choices]
    if stride is not None or not before or max(map(len, rows)) > model.config.n_positions:
        return [score(model, choice, context=context, stride=stride, bos=bos) for choice in choices]
    found = dict(score_continuations(model, [(before, row) for row in rows]))
    return [
        make_score(model, choice, row, [*found[number].logprobs], [*found[number].ranks])
        for number, (choice, row) in enumerate(zip(choices, rows, strict=True))
    ]


def check_answer(choices: Sequence[Text], answer: object) -> int | None:
    """The number of the right choice. Raises OptionError for invalid choices, and an answer that is not one of them."""
    if isinstance(choices, str) or not isinstance(choices, Sequence) or not choices:
        raise OptionError("choices must be a list of at least one text")
    for number, choice in enumerate(choices):
        if not isinstance(choice, Iterable):
            raise OptionError(f"choice {number} must be text or token ids, not {choice!r}")
    if answer is None:
        return None
    if isinstance(answer, str) and answer in choices:
        return list(choices).index(answer)
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(choices):
        raise OptionError(
            f"answer must be the number of a choice, from 0 to {len(choices) - 1}, or its text, not {shown(answer)}"
        )
    return answer


def accuracy(questions: Iterable[RankedChoices]) -> Accuracy:
    """How often the right choice is ranked first. Questions whose answer is not known do not count."""
    known = [question for question in questions if question.answer is not None]
    acc, acc_norm, acc_bytes = (
        sum(getattr(question, name) for question in known) / len(known) if known else math.nan
        for name in ("acc", "acc_norm", "acc_bytes")
    )
    return Accuracy(len(known), acc, acc_norm, acc_bytes)
