"""A draft model: a smaller model of the same vocabulary guesses, and one pass of the larger one checks its guesses.

Greedy tokens are those that come without it. Sampled guesses are drawn, and accepted by the rule of speculative
sampling (samplers.draw_or_accept): the text keeps its distribution, while a seed gives another text than without the
draft.
"""

from __future__ import annotations

from typing import cast

import mlx.core as mx

from mlxgen.errors import OptionError
from mlxgen.generation.cached_context import MOST_GUESSES
from mlxgen.generation.context import Context, shared_length
from mlxgen.model import Model
from mlxgen.sampling.chooser import Chooser, Guess

FIRST_GUESSES = 4
LONGEST_PAUSE = 63  # passes
CHECKED_PIECES = 64  # of two vocabularies that should be the same


class Draft:
    """Guesses what a smaller model of the same vocabulary would choose. Raises OptionError for another vocabulary.

    The smaller model has a context of its own, which stays with the one that it guesses for, and slides where its table
    ends.
    """

    def __init__(self, context: Context, model: Model) -> None:
        check_vocabulary(context.model, model)
        self._tokens, self._own = context.tokens, context.draft_context(model)
        self._own.reset_to(self._tokens)
        self._own.compile_step()
        self._is_first = True
        self._pause = self._waiting = 0  # passes without guesses, while they are all wrong
        self._ahead: list[mx.array] = []  # ids [1] that its cache holds after its own tokens, right or wrong
        self._length = FIRST_GUESSES

    def guess(self, token: mx.array, known: bool, most: int, choose: Chooser) -> list[Guess]:
        if self._waiting:
            self._waiting -= 1
            return []
        own, choose = self._own, choose.fork()
        self._follow(len(self._tokens) - known)
        late, first = own.tokens[own.processed :], self._is_first
        self._is_first = False
        if len(late) > own.guessable:
            if first:  # a long prompt is read after the answer's first token is out
                return []
            own.prefill()
            late = []
        logits = own.process(mx.concatenate([mx.array(late, dtype=token.dtype), token]))[-1:]
        guesses = [choose.guess(logits)]
        left = own.positions_left  # it does not slide in the midst of guessing
        while len(guesses) < min(self._length, most, left + 1):
            mx.async_eval(guesses[-1].token)  # the device starts while Python builds the next
            guesses.append(choose.guess(own.process(guesses[-1].token)))
        self._ahead = [token, *(guess.token for guess in guesses[:-1])]
        return guesses

    def learn(self, guesses: int, right: int) -> None:
        self._length = min(self._length + 2, MOST_GUESSES) if right == guesses else max(self._length - 1, 1)
        self._waiting = self._pause if right == 0 else 0
        self._pause = min(2 * self._pause + 1, LONGEST_PAUSE) if right == 0 else 0

    def _follow(self, end: int) -> None:
        """Make the context's first `end` tokens the draft's own, keeping what was guessed right."""
        own = self._own
        tried = [cast(int, token.item()) for token in self._ahead]
        came = self._tokens[len(own.tokens) : end]
        right = shared_length(tried, came)
        for token in tried:
            own.accept(token)
        own.rewind(len(tried) - right)
        own.extend(came[right:])
        self._ahead = []


def check_vocabulary(model: Model, draft: Model) -> None:
    """Raise OptionError for a draft model whose tokens are others than the model's."""
    size, other = model.config.vocab_size, draft.config.vocab_size
    some = range(0, min(size, other), max(size // CHECKED_PIECES, 1))
    if size != other or any(model.tokenizer.token(token) != draft.tokenizer.token(token) for token in some):
        raise OptionError(
            f"the draft model {draft.name} has another vocabulary ({other:,} tokens) than {model.name} ({size:,});"
            " draft with a smaller model of the same family"
        )
