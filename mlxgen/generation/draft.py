"""A draft model: a smaller model with the same vocabulary guesses tokens, and one pass of the larger one checks them.

With greedy decoding the answer is the same as without a draft model. With sampling, guesses are drawn at random and
accepted by the rule of speculative sampling (samplers.draw_or_accept): the distribution of the text stays the same, but
a seed gives a different text than without the draft model.
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
CHECKED_PIECES = 64  # how many tokens of the two vocabularies are compared, at least


class Draft:
    """A guesser that runs a smaller model. Raises OptionError if the vocabularies differ.

    The smaller model has its own context, which is kept with the larger model's from answer to answer and slides when
    its position table is full.
    """

    def __init__(self, context: Context, model: Model) -> None:
        check_vocabulary(context.model, model)
        self._tokens, self._own = context.tokens, context.draft_context(model)
        self._size, self._own_size = context.model.config.vocab_size, model.config.vocab_size
        self._own.reset_to(self._known(self._tokens))
        self._own.compile_step()
        self._is_first = True
        self._pause = self._waiting = 0  # passes without guesses, after guesses that were all wrong
        self._ahead: list[mx.array] = []  # ids [1] that its cache holds beyond its tokens, right or wrong
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
            if first:  # process a long prompt only after the answer's first token was yielded
                return []
            own.prefill()
            late = []
        newest = mx.minimum(token, self._own_size - 1)
        logits = own.process(mx.concatenate([mx.array(late, dtype=token.dtype), newest]))[-1:]
        guesses = [choose.guess(self._as_wide(logits))]
        left = own.positions_left  # no slide while guessing
        while len(guesses) < min(self._length, most, left + 1):
            mx.async_eval(guesses[-1].token)  # the device works while Python builds the next step
            guesses.append(choose.guess(self._as_wide(own.process(guesses[-1].token))))
        self._ahead = [token, *(guess.token for guess in guesses[:-1])]
        return guesses

    def learn(self, guesses: int, right: int) -> None:
        self._length = min(self._length + 2, MOST_GUESSES) if right == guesses else max(self._length - 1, 1)
        self._waiting = self._pause if right == 0 else 0
        self._pause = min(2 * self._pause + 1, LONGEST_PAUSE) if right == 0 else 0

    def _follow(self, end: int) -> None:
        """Bring the draft model's context to the first `end` tokens of the larger one's, reusing the right guesses."""
        own = self._own
        tried = [cast(int, token.item()) for token in self._ahead]
        added = self._tokens[len(own.tokens) : end]
        right = shared_length(tried, added)
        for token in self._known(tried):
            own.accept(token)
        own.rewind(len(tried) - right)
        own.extend(self._known(added[right:]))
        self._ahead = []

    def _known(self, ids: list[int]) -> list[int]:
        """The ids, with the draft's last one in place of those past its table, which stand for no text."""
        return ids if self._own_size >= self._size else [min(token, self._own_size - 1) for token in ids]

    def _as_wide(self, logits: mx.array) -> mx.array:
        """The draft's logits [1, V] over the model's ids. Ids that only one of the two has are never guessed."""
        if self._own_size >= self._size:
            return logits[:, : self._size]
        return mx.pad(logits, [(0, 0), (0, self._size - self._own_size)], constant_values=-mx.inf)


def check_vocabulary(model: Model, draft: Model) -> None:
    """Raise OptionError if the draft model's vocabulary differs from the model's."""
    size, other = model.tokenizer.vocab_size, draft.tokenizer.vocab_size  # an embedding may be padded
    some = range(0, min(size, other, model.config.vocab_size, draft.config.vocab_size), max(size // CHECKED_PIECES, 1))
    if size != other or any(model.tokenizer.token(token) != draft.tokenizer.token(token) for token in some):
        raise OptionError(
            f"the draft model {draft.name} has a different vocabulary ({other:,} tokens) than {model.name} ({size:,});"
            " use a smaller model of the same family"
        )
