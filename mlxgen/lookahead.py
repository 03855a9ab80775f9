"""Guessed tokens, checked in one pass: the loop's text in fewer passes through the network.

Who guesses does not matter to the outcome: the loop keeps a token only if its rules chose it from the model's own
logits. What NGrams guess therefore leaves each token as it is, sampled ones too. A draft model's guesses are drawn, and
accepted by the rule of speculative sampling: greedy tokens stay as they are, and sampled ones keep their distribution,
while a seed gives another text than without the draft.
"""

from __future__ import annotations

from typing import Literal, cast

import mlx.core as mx

from mlxgen.cached_context import MOST_GUESSES
from mlxgen.chooser import Chooser, Guess
from mlxgen.errors import OptionError
from mlxgen.model import Model
from mlxgen.session import Session

LONG, SHORT = 3, 2  # tokens that must have stood together before, for what came after them to be a guess
FIRST_GUESSES = 3
LONGEST_PAUSE = 126  # tokens
FIRST_DRAFT = 4  # tokens
CHECKED_PIECES = 64  # of two vocabularies that should be the same

Grounds = Literal["long", "resume", "short"]  # what a guess is founded on


class NGrams:
    """Guesses that after the same few tokens the same will come as the last time (Saxena, 2023).

    Where a guess was wrong after right ones, a word may have been exchanged: the next begins after that word. Guesses
    grow while they are right. After wrong ones, none is made for a while on the same grounds, and the while grows, so
    that text without repetition costs next to nothing. context: the session's tokens, which the loop appends to.
    """

    def __init__(self, context: list[int]) -> None:
        self._context = context
        self._after: dict[tuple[int, ...], int] = {}  # where the newest occurrence of a few tokens ends
        self._indexed = SHORT
        self._length = FIRST_GUESSES
        self._resume: int | None = None  # where to go on after an exchanged word
        self._grounds: Grounds = "long"  # of the newest guesses
        self._source = 0  # where in the context they were found
        self._pause: dict[Grounds, int] = {"long": 0, "resume": 0, "short": 0}  # after the next failure
        self._not_before: dict[Grounds, int] = dict.fromkeys(self._pause, 0)  # length of the context

    def guess(self, token: mx.array, known: bool, most: int, choose: Chooser) -> list[Guess]:
        context = self._context
        places = self._found(known).items()
        found = (place for place in places if place[1] is not None and len(context) >= self._not_before[place[0]])
        grounds, at = next(found, ("long", None))
        if at is None:
            return []
        self._grounds = grounds
        self._source = at if known else at + 1  # the first stands for the token itself, which nobody has read
        following = context[at : at + MOST_GUESSES + 1]
        while len(following) < MOST_GUESSES + 1:  # past the end of the context it goes on from itself
            following += following
        guesses = following[self._source - at :][: min(self._length, most)]
        return [Guess(mx.array([guess], dtype=token.dtype)) for guess in guesses]

    def learn(self, guesses: int, right: int) -> None:
        grounds, pause = self._grounds, self._pause[self._grounds]
        if right == guesses:
            self._length, self._pause[grounds] = min(2 * self._length + 1, MOST_GUESSES), 0
            return
        self._length = max(right, self._length // 2, FIRST_GUESSES)
        if right:
            self._pause[grounds] = pause // 2
            self._resume = self._source + right + 1
        else:
            self._not_before[grounds] = len(self._context) + pause
            self._pause[grounds] = min(3 * pause + 2, LONGEST_PAUSE)

    def _found(self, known: bool) -> dict[Grounds, int | None]:
        """Where in the context the tokens stand that followed what it ends with, on each of the grounds, best first."""
        context, after = self._context, self._after
        for end in range(self._indexed, len(context)):
            after[tuple(context[end - SHORT : end])] = end
            after[tuple(context[max(end - LONG, 0) : end])] = end
        self._indexed = max(self._indexed, len(context))
        resume, self._resume = self._resume if known else None, None
        long, short = (after.get(tuple(context[-length:])) for length in (LONG, SHORT))
        return {"long": long, "resume": resume, "short": short}


class Draft:
    """Guesses what a smaller model of the same vocabulary would choose. Raises OptionError for another vocabulary.

    The smaller model has a session of its own, which stays with the session that it guesses for, and slides where its
    table ends.
    """

    def __init__(self, session: Session, model: Model) -> None:
        if not isinstance(model, Model):
            raise OptionError(f"draft must be a model, as mlxgen.load() gives, not {type(model).__name__}")
        _check_vocabulary(session.model, model)
        if session.drafting is None or session.drafting.model is not model:
            session.drafting = Session(model, overflow="slide")
        self._context, self._own = session.tokens, session.drafting
        self._own.reset_to(self._context)
        self._ahead: list[mx.array] = []  # ids [1] that its cache holds after its own tokens, right or wrong
        self._length = FIRST_DRAFT

    def guess(self, token: mx.array, known: bool, most: int, choose: Chooser) -> list[Guess]:
        own, choose = self._own, choose.fork()
        self._follow(self._context[: -1 if known else None])
        late = own.tokens[own.processed :]
        if late and len(late) > own.guessable:
            own.prefill()
            late = []
        logits = own.process(mx.concatenate([mx.array(late, dtype=token.dtype), token]))[-1:]
        guesses = [choose.guess(logits)]
        left = own.model.config.n_positions - own.cache[0].offset  # it does not slide in the midst of guessing
        while len(guesses) < min(self._length, most, left + 1):
            mx.async_eval(guesses[-1].token)  # the device starts while Python builds the next
            guesses.append(choose.guess(own.process(guesses[-1].token)))
        self._ahead = [token, *(guess.token for guess in guesses[:-1])]
        return guesses

    def learn(self, guesses: int, right: int) -> None:
        self._length = min(self._length + 2, MOST_GUESSES) if right == guesses else max(self._length - 1, 1)

    def _follow(self, context: list[int]) -> None:
        """Make the context the own session's, keeping what was guessed right."""
        own = self._own
        tried = [cast(int, token.item()) for token in self._ahead]
        came = context[len(own.tokens) :]
        right = next((n for n, pair in enumerate(zip(tried, came, strict=False)) if pair[0] != pair[1]), None)
        if right is None:
            right = min(len(tried), len(came))
        own.tokens.extend(tried)
        own.rewind(len(tried) - right)
        own.tokens.extend(came[right:])
        self._ahead = []


def _check_vocabulary(model: Model, draft: Model) -> None:
    size, other = model.config.vocab_size, draft.config.vocab_size
    some = range(0, min(size, other), max(size // CHECKED_PIECES, 1))
    if size != other or any(model.tokenizer.token(token) != draft.tokenizer.token(token) for token in some):
        raise OptionError(
            f"the draft model {draft.name} has another vocabulary ({other:,} tokens) than {model.name} ({size:,});"
            " draft with a smaller model of the same family"
        )
