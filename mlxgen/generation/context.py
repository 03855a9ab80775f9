"""The tokens so far and the cache that matches them: what is processed when, and what leaves the cache.

What the cache holds is decided by the tokens alone, however they came in. While the position table has room, it is all
tokens processed. When it is full and one more has to be processed, the context slides: the cache is rebuilt from the
first `keep` tokens and the newest of the others, half a table in all, from position 0.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal

import mlx.core as mx

from mlxgen import device
from mlxgen.errors import ContextError, OptionError, check_whole
from mlxgen.generation.sliding import Slide, last_slide, slide_at
from mlxgen.model import Model
from mlxgen.network.cache import RotatingKVCache, make_cache
from mlxgen.network.compiled_step import CompiledStep
from mlxgen.network.decoder import GPT2

Overflow = Literal["stop", "slide"]
Progress = Callable[[int, int], None]

PREFILL_CHUNK = 256
MOST_GUESSES = 15  # with the token before them 16 rows


class CachedContext:
    """A context, and what of it each layer has processed. The arguments are those of a Session.

    `tokens` may be added to at their end; what is taken away goes through `_take_out` first.
    """

    def __init__(
        self,
        model: Model,
        *,
        max_kv_size: int | None = None,
        keep: int = 0,
        overflow: Overflow = "stop",
        prefill_chunk: int = PREFILL_CHUNK,
        cache: Sequence[Any] | None = None,
    ) -> None:
        half = model.config.n_positions // 2
        if overflow not in ("stop", "slide"):
            raise OptionError(f'overflow must be "stop" or "slide", not {overflow!r}')
        check_whole("prefill_chunk", prefill_chunk, 1)
        check_whole("keep", keep, 0)
        if overflow == "slide" and keep >= half:
            raise OptionError(f"keep must be below half the position table ({half}) to slide, not {keep}")
        self.model, self.overflow, self.prefill_chunk = model, overflow, prefill_chunk
        self.keep = keep  # how many of the first tokens the next slide keeps
        self.breaks: list[int] = []  # in order, where the newest part may begin after a slide; empty: anywhere
        self.tokens: list[int] = []
        self.unknown = 0  # positions before the tokens, from a file that does not say which tokens they were
        self.processed = 0  # how many of the tokens the cache covers
        self.computed = 0  # positions put through the network and kept, in the session's life
        self.slides = 0  # how often the context slid
        self.slide: Slide | None = None  # the newest slide that the cache shows
        self.max_kv_size, self.cache_keep = max_kv_size, keep
        given = list(cache) if cache is not None else None
        self._given = copy.deepcopy(given)  # stays empty, to start again from
        self.cache: list[Any] = given if given is not None else self._empty_cache()
        self.surplus = 0  # newest positions that the cache would not hold if the answer under way ended here
        self._answer: object | None = None  # which answer is under way
        self._compiled: CompiledStep | None = None

    @property
    def cache_length(self) -> int:
        """Positions that each layer's cache holds now."""
        return int(self.cache[0].size())

    @property
    def nbytes(self) -> int:
        """Memory of the cache, in bytes."""
        return sum(int(layer.nbytes) for layer in self.cache)

    @property
    def is_own_cache(self) -> bool:
        """Whether the cache is mlxgen's, and not one that was given."""
        return self._given is None

    @property
    def table_is_full(self) -> bool:
        """Whether the next token to be processed has no position left."""
        return bool(self.cache[0].offset >= self.model.config.n_positions)

    @property
    def room(self) -> int | None:
        """How many more tokens the context can take; None when it slides and so never ends."""
        if self.overflow == "slide":
            return None
        return self.model.config.n_positions - self.unknown - len(self.tokens)

    def begin_answer(self) -> object:
        """End the answer under way, if there is one, and begin another; returns what it is known by."""
        self.settle()
        self._answer = object()
        return self._answer

    def is_under_way(self, answer: object) -> bool:
        """Whether nothing else was done with the context since the answer began."""
        return self._answer is answer

    def settle(self) -> None:
        """End the answer under way: the cache then covers all but the newest of its tokens."""
        surplus, self.surplus, self._answer = self.surplus, 0, None
        if surplus:
            self.take_back(surplus)

    def prefill(self, progress: Progress | None = None) -> mx.array:
        """Process every token not yet in the cache, in chunks; returns the last one's logits [1, V], unevaluated.

        progress is called with (tokens done, tokens in all) after each chunk.
        """
        if not self.tokens:
            raise OptionError("the context is empty; extend the session first")
        if self.processed == len(self.tokens):  # nothing new: the last token's logits are wanted again
            self._take_out(1)
        self.renew_step()
        end = len(self.tokens)
        table, offset = self.model.config.n_positions, self.cache[0].offset
        ahead = last_slide(self.processed + table - offset, end, table, self.keep, self.breaks)
        todo = (self._restart(ahead) if ahead else []) + self.tokens[self.processed : end]
        self.processed = end - len(todo)
        try:
            if progress:
                progress(0, len(todo))
            for start in range(0, len(todo), self.prefill_chunk):
                chunk = todo[start : start + self.prefill_chunk]
                hidden = self._run(mx.array([chunk]))
                self.processed += len(chunk)
                if self.processed < end:
                    mx.eval([layer.state for layer in self.cache])
                    mx.clear_cache()
                if progress:
                    progress(start + len(chunk), len(todo))
        except BaseException:
            if ahead and self.processed < ahead.at:  # what a slide kept is only half in
                self._forget()
            raise
        return self.model.decoder.head(hidden[:, -1])

    def renew_step(self) -> None:
        """Compile the step anew, where it is compiled: the weights may be others than at the last answer."""
        compiles = self.is_own_cache and type(self.model.decoder) is GPT2 and device.compiles_steps()
        self._compiled = CompiledStep(self.model.decoder) if compiles else None

    @property
    def guessable(self) -> int:
        """How many tokens more than one can be processed at once and taken back again."""
        return min(MOST_GUESSES, max(self.model.config.n_positions - self.cache[0].offset - 1, 0))

    def process(self, tokens: mx.array) -> mx.array:
        """Put the newest tokens [n] through the network; returns their logits [n, V], a graph and not yet numbers.

        Where the table is full, it slides first. All but the first token are guesses, at most `guessable` of them.
        """
        if self.table_is_full:
            slide = slide_at(self.processed, self.model.config.n_positions, self.keep, self.breaks)
            kept = self._restart(slide)
            try:
                for start in range(0, len(kept), self.prefill_chunk):
                    mx.eval(self._run(mx.array([kept[start : start + self.prefill_chunk]])))
            except BaseException:  # only half in
                self._forget()
                raise
            mx.clear_cache()
        for layer in self.cache:
            if isinstance(layer, RotatingKVCache):
                layer.slack = len(tokens) - 1  # the guesses may be taken back
        hidden = self._run(tokens[None])
        self.processed += len(tokens)
        return self.model.decoder.head(hidden[0])

    def take_back(self, n: int = 1) -> None:
        """Take the newest n processed tokens out of the cache, as if they had never been processed."""
        self._take_out(n)
        self.computed -= n

    def _run(self, ids: mx.array) -> mx.array:
        """The next positions through every layer: ids [1, L] -> [1, L, D]."""
        self.computed += ids.shape[1]
        try:
            if self._compiled and ids.shape[1] == 1 and self.cache[0].offset:
                return self._compiled(ids, self.cache)
            return self.model.decoder.hidden(ids, self.cache)
        except BaseException:  # interrupted between two layers, which no longer agree
            self._forget()
            raise

    def _take_out(self, n: int) -> None:
        """Let the cache cover n tokens fewer, or none at all if it has dropped what came before."""
        left = self.processed - n
        if n == 0:
            return
        reach = self.slide.at if self.slide else 0
        if left >= reach and all(_trims(layer, n) for layer in self.cache) and {x.trim(n) for x in self.cache} == {n}:
            self.processed = left
            return
        self._forget()

    def _forget(self) -> None:
        """Empty the cache; what is needed of the context will be processed again."""
        if self.unknown:
            raise ContextError(
                "the session came from a file that does not say which tokens it holds: it can neither slide nor go back"
                " before what was added here; start a new session from the text"
            )
        self.cache, self.processed, self.slide = self._empty_cache(), 0, None

    def _restart(self, slide: Slide) -> list[int]:
        """Empty the cache for a slide; returns the tokens it keeps, still to be processed."""
        if self.overflow == "stop":
            raise ContextError(
                f'the model\'s table of {self.model.config.n_positions:,} positions is full; overflow="slide" goes on'
            )
        self._forget()
        self.processed, self.slide, self.slides = slide.at, slide, self.slides + 1
        return self.tokens[: slide.keep] + self.tokens[slide.start : slide.at]

    def _check_room(self, length: int) -> None:
        length += self.unknown
        if self.overflow == "stop" and length > self.model.config.n_positions:
            raise ContextError(
                f"the prompt has {length:,} tokens, more than the model's"
                f" {self.model.config.n_positions:,} positions; shorten it, or let it slide"
                ' (overflow="slide", in the terminal --overflow slide)'
            )

    def _empty_cache(self) -> list[Any]:
        if self._given is not None:
            return list(copy.deepcopy(self._given))
        return list(make_cache(self.model.config.n_layer, self.max_kv_size, self.cache_keep))


def _trims(layer: Any, n: int) -> bool:
    """Whether a layer's cache can forget its newest n positions."""
    trimmable = getattr(layer, "trimmable", None)  # ours say how many
    return n <= trimmable if isinstance(trimmable, int) else n == 1 or bool(layer.is_trimmable())
