"""Lookahead: guesses from the text so far, so that one pass through the network can check several tokens.

Guesses do not change the answer: the loop keeps a guess only if the sampling rules choose the same token from the
model's logits, with the step's own key. So every token, greedy or sampled, is the same as without guesses.
"""

from __future__ import annotations

from typing import Literal

import mlx.core as mx

from mlxgen.generation.cached_context import MOST_GUESSES
from mlxgen.sampling.chooser import Chooser, Guess

LONG, SHORT = 3, 2  # how many of the newest tokens must have occurred before, in this order, to guess what follows
FIRST_GUESSES = 3
LONGEST_PAUSE = 126  # tokens

Match = Literal["long", "resume", "short"]  # how the place was found whose following tokens are the guess


class NGrams:
    """Guesses that the same few tokens are followed by the same tokens as last time (prompt lookup: Saxena, 2023).

    If the first guesses were right and then one was wrong, a word may have been replaced, so the next guess resumes
    after that word. More tokens are guessed while guesses are right. After wrong guesses the same kind of match pauses,
    longer each time, so that text without repetition costs next to nothing.
    context: the tokens so far; the loop appends to this list.
    """

    def __init__(self, context: list[int]) -> None:
        self._context = context
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> where its newest occurrence ends
        self._indexed = SHORT
        self._length = FIRST_GUESSES
        self._resume: int | None = None  # where to continue after a replaced word
        self._match: Match = "long"  # of the newest guesses
        self._source = 0  # where in the context the newest guesses were copied from
        self._pause: dict[Match, int] = {"long": 0, "resume": 0, "short": 0}  # tokens, after the next failure
        self._not_before: dict[Match, int] = dict.fromkeys(self._pause, 0)  # context length at which the pause ends

    def guess(self, token: mx.array, known: bool, most: int, choose: Chooser) -> list[Guess]:
        context = self._context
        matches = self._matches(known).items()
        usable = (match for match in matches if match[1] is not None and len(context) >= self._not_before[match[0]])
        match, at = next(usable, ("long", None))
        if at is None:
            return []
        self._match = match
        self._source = at if known else at + 1  # the token at `at` stands for the newest one, which is unread
        following = context[at : at + MOST_GUESSES + 1]
        while len(following) < MOST_GUESSES + 1:  # past the end of the context, the guess repeats itself
            following += following
        guesses = following[self._source - at :][: min(self._length, most)]
        return [Guess(mx.array([guess], dtype=token.dtype)) for guess in guesses]

    def learn(self, guesses: int, right: int) -> None:
        match, pause = self._match, self._pause[self._match]
        if right == guesses:
            self._length, self._pause[match] = min(2 * self._length + 1, MOST_GUESSES), 0
            return
        self._length = max(right, self._length // 2, FIRST_GUESSES)
        if right:
            self._pause[match] = pause // 2
            self._resume = self._source + right + 1
        else:
            self._not_before[match] = len(self._context) + pause
            self._pause[match] = min(3 * pause + 2, LONGEST_PAUSE)

    def _matches(self, known: bool) -> dict[Match, int | None]:
        """For each kind of match, best first: where the tokens begin that followed the context's ending before."""
        context, after = self._context, self._after
        for end in range(self._indexed, len(context)):
            after[tuple(context[end - SHORT : end])] = end
            after[tuple(context[max(end - LONG, 0) : end])] = end
        self._indexed = max(self._indexed, len(context))
        resume, self._resume = self._resume if known else None, None
        long, short = (after.get(tuple(context[-length:])) for length in (LONG, SHORT))
        return {"long": long, "resume": resume, "short": short}
