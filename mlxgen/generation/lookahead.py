"""Lookahead: guesses from the text so far, so that one pass through the network checks several tokens.

Who guesses does not matter to the outcome: the loop keeps a token only if its rules chose it from the model's own
logits, with the step's own key. So every token, greedy or sampled, is the one that comes without guesses.
"""

from __future__ import annotations

from typing import Literal

import mlx.core as mx

from mlxgen.generation.cached_context import MOST_GUESSES
from mlxgen.sampling.chooser import Chooser, Guess

LONG, SHORT = 3, 2  # tokens that must have stood together before, for what came after them to be a guess
FIRST_GUESSES = 3
LONGEST_PAUSE = 126  # tokens

Grounds = Literal["long", "resume", "short"]  # what a guess is founded on


class NGrams:
    """Guesses that after the same few tokens the same will come as the last time (Saxena, 2023).

    Where a guess was wrong after right ones, a word may have been exchanged: the next begins after that word. Guesses
    grow while they are right. After wrong ones, none is made for a while on the same grounds, and the while grows, so
    that text without repetition costs next to nothing. context: the tokens so far, which the loop appends to.
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
