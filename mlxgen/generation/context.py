"""A context that can be extended, rewound, forked, saved and restored.

A rewind removes positions from the cache if it can, and otherwise clears it. The next answer then processes the tokens
that a context of this length holds, and no more.
"""

from __future__ import annotations

import copy
import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import mlx.core as mx
from mlx.utils import tree_map

from mlxgen.errors import ContextError, OptionError
from mlxgen.generation.cached_context import CachedContext
from mlxgen.generation.one_thread import one_thread
from mlxgen.generation.request import ContextOptions
from mlxgen.generation.sliding import Slide
from mlxgen.model import Model, encode_prompt, too_long


@dataclass(frozen=True, slots=True)
class Mark:
    """A point in a session to rewind to: how many tokens it had, and how many of them were processed."""

    tokens: int
    processed: int


@dataclass(frozen=True, slots=True)
class ContextState:
    """Everything in a context except its model. The fields have the names of CachedContext's attributes."""

    options: ContextOptions
    tokens: list[int]
    untracked: int
    processed: int
    slide_keep: int
    slide_points: list[int]
    slides: int
    slide: Slide | None
    cache: list[Any]


class Context(CachedContext):
    """A CachedContext whose tokens the caller can change, for one thread at a time.

    Each method raises OptionError while another thread is inside one, or inside a step of an answer.
    """

    _drafting: Context | None = None  # the draft model's context, with the same tokens

    @property
    @one_thread
    def state(self) -> ContextState:
        """The state of the context; in the middle of an answer, as if the answer ended here."""
        source = self.fork() if self.ahead else self
        return ContextState(**{name: getattr(source, name) for name in ContextState.__dataclass_fields__})

    @classmethod
    def from_state(cls, model: Model, state: ContextState) -> Self:
        """A context with the given state. Raises ValueError if the cache does not match the tokens."""
        context = cls.__new__(cls)
        CachedContext.__init__(context, model, state.options)
        for name in ContextState.__dataclass_fields__:
            setattr(context, name, getattr(state, name))
        offset = context.expected_offset
        if not 0 <= state.processed <= len(state.tokens) or any(layer.offset != offset for layer in state.cache):
            raise ValueError("the cache does not match the tokens")
        encode_prompt(model, state.tokens)
        context._check_room(len(state.tokens))
        context.send_off()
        return context

    @one_thread
    def extend(self, addition: str | Sequence[int]) -> None:
        """Add text or token ids to the context. They are processed when something is generated.

        Text is tokenized on its own, so no token spans the boundary to the text before. Raises ContextError if it does
        not fit and OptionError for ids outside the vocabulary; the session is then unchanged.
        """
        ids = encode_prompt(self.model, addition, begins=not (self.tokens or self.untracked), must_fit=self._stops)
        self._check_room(len(self.tokens) + len(ids))
        self.end_answer()
        self.tokens.extend(ids)

    @one_thread
    def reset_to(self, prompt: str | Sequence[int]) -> None:
        """Replace the context with the prompt. The cache of a common beginning is reused."""
        ids = encode_prompt(self.model, prompt, begins=True, must_fit=self._stops)
        self._check_room(len(ids))
        shared = shared_length(self.tokens, ids)
        self.rewind(len(self.tokens) - shared)
        self.tokens.extend(ids[shared:])

    @one_thread
    def mark(self) -> Mark:
        """The present state of the session, for rewind(to=...)."""
        return Mark(len(self.tokens), self.processed - self.ahead)

    @one_thread
    def rewind(self, n_tokens: int | None = None, *, to: Mark | None = None) -> None:
        """Remove the newest n_tokens, or everything since a mark. Raises OptionError if the session is shorter.

        The session is then as if they had never been added. Nothing is computed again as long as the cache can remove
        their positions; if it has dropped older positions since, the next answer processes the context again.
        """
        if (n_tokens is None) == (to is None):
            raise OptionError("rewind takes either a number of tokens or a mark (to=...)")
        length = to.tokens if to else len(self.tokens) - (n_tokens or 0)
        if isinstance(n_tokens, bool) or not 0 <= length <= len(self.tokens):
            asked = f"to token {length}" if to else f"{n_tokens!r} tokens"
            raise OptionError(f"cannot rewind {asked}: the session has {len(self.tokens)} tokens")
        self.end_answer()
        self._trim(self.processed - min(self.processed, to.processed if to else length, length))
        del self.tokens[length:]
        del self.slide_points[bisect_left(self.slide_points, length + 1) :]

    @one_thread
    def fork(self) -> Self:
        """A copy of the session. The two share the cache's memory until one of them writes to it."""
        other = copy.copy(self)
        other.lock = threading.RLock()
        other.tokens, other.slide_points = list(self.tokens), list(self.slide_points)
        other.cache, other._drafting = [_copied(layer) for layer in self.cache], None
        other.end_answer()  # in the middle of an answer: drop what was processed ahead
        return other

    @one_thread
    def plan_slide(self, keep: int, points: Sequence[int]) -> None:
        """Set what the next slide keeps: the first `keep` tokens, and the newest tokens from one of the points on.

        points: numbers of tokens, sorted; if empty, the newest part may begin anywhere.
        """
        self.slide_keep, self.slide_points = keep, list(points)

    def draft_context(self, model: Model) -> Context:
        """The context of a draft model that guesses for this one. It stays the same from answer to answer."""
        if self._drafting is None or self._drafting.model is not model:
            self._drafting = Context(model, ContextOptions(overflow="slide"))
        return self._drafting

    @property
    def _stops(self) -> bool:
        return self.options.overflow == "stop"

    def _check_room(self, length: int) -> None:
        length += self.untracked
        if self._stops and length > self.model.config.n_positions:
            raise ContextError(too_long(f"{length:,}", self.model))


def shared_length(one: Sequence[int], two: Sequence[int]) -> int:
    """The length of the longest common beginning of two token lists."""
    pairs = enumerate(zip(one, two, strict=False))
    return next((at for at, (first, second) in pairs if first != second), min(len(one), len(two)))


def _copied(layer: Any) -> Any:
    """A copy of one layer's cache. The two share memory until one of them writes to it."""
    other = copy.copy(layer)
    for name, value in vars(layer).items():
        setattr(other, name, tree_map(lambda part: copy.copy(part) if isinstance(part, mx.array) else part, value))
    return other
