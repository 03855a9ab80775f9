"""A context: the tokens so far, and the cache of those that have been processed.

The content of the cache depends only on the tokens, not on how they were added. While the position table has room, the
cache covers all processed tokens. When the table is full and another token has to be processed, the context slides: the
cache is rebuilt, from position 0, from the first `slide_keep` tokens and the newest others, half a table in total.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mlxgen import device
from mlxgen.errors import ContextError, OptionError
from mlxgen.forked_process import check_process
from mlxgen.generation.observer import Observer
from mlxgen.generation.one_thread import one_thread
from mlxgen.generation.request import ContextOptions, Progress
from mlxgen.generation.sliding import Slide, last_slide, slide_at
from mlxgen.model import Model
from mlxgen.network.cache import RotatingKVCache, make_cache
from mlxgen.network.compiled_step import CompiledStep, compiled_step
from mlxgen.network.decoder import GPT2

MOST_GUESSES = 15  # a pass then has 16 rows: the newest token and the guesses


class CachedContext:
    """The tokens of a context, and each layer's cache of those that have been processed.

    cache: an empty cache to use instead of mlxgen's own, one entry per layer, with mlx-lm's protocol. observer: is
    called at every pass through the network. Raises OptionError.
    """

    def __init__(
        self,
        model: Model,
        options: ContextOptions,
        cache: Sequence[Any] | None = None,
        observer: Observer | None = None,
    ) -> None:
        check_process()
        options.check_table(model.config.n_positions)
        self.lock = threading.RLock()
        self.model, self.options = model, options
        self.tokens: list[int] = []
        self.untracked = 0  # positions before the tokens, from a file that does not say which tokens they are
        self.processed = 0  # how many tokens the cache covers
        self.computed = (
            0  # positions sent through the network since the start, without those that were dropped as ahead
        )
        self.slide_keep = options.keep  # how many of the first tokens the next slide keeps
        self.slide_points: list[int] = []  # sorted: where the newest part may begin after a slide; empty: anywhere
        self.slides = 0  # how often the context has slid
        self.slide: Slide | None = None  # the slide that the cache was built by, if any
        given = list(cache) if cache is not None else None
        self._given = copy.deepcopy(given)  # stays empty: copied whenever the cache starts anew
        self.cache: list[Any] = given if given is not None else self._empty_cache()
        self._observer = observer
        self._answer: object | None = None  # identifies the answer in progress
        self._accepted = 0  # tokens accepted in that answer
        self._compiled: CompiledStep | None = None

    @property
    def cache_length(self) -> int:
        """How many positions each layer's cache holds."""
        return int(self.cache[0].size())

    @property
    def nbytes(self) -> int:
        """Memory of the cache, in bytes."""
        return sum(int(layer.nbytes) for layer in self.cache)

    @property
    def expected_offset(self) -> int:
        """How many positions of the table the processed tokens take up: each layer's cache has this offset."""
        return self.untracked + self.processed - (self.slide.at - self.slide.size if self.slide else 0)

    @property
    def has_own_cache(self) -> bool:
        """Whether the cache is mlxgen's own, not one passed by the caller."""
        return self._given is None

    @property
    def positions_left(self) -> int:
        """How many more tokens can be processed before the position table is full."""
        return max(self.model.config.n_positions - int(self.cache[0].offset), 0)

    @property
    def room(self) -> int | None:
        """How many more tokens fit into the context; None if it slides and so has no limit."""
        if self.options.overflow == "slide":
            return None
        return self.model.config.n_positions - self.untracked - len(self.tokens)

    @property
    def guessable(self) -> int:
        """How many guessed tokens can be processed after the newest one and still be dropped again."""
        return min(MOST_GUESSES, max(self.positions_left - 1, 0))

    def begin_answer(self) -> object:
        """Begin an answer, and end the one in progress if there is one; returns an object that identifies it."""
        self.end_answer()
        self._answer = object()
        return self._answer

    def is_under_way(self, answer: object) -> bool:
        """Whether the answer is still in progress: nothing else was done with the context since it began."""
        return self._answer is answer

    def end_answer(self) -> None:
        """End the answer in progress. The cache then covers all of its tokens but the newest."""
        if any(layer.offset != self.expected_offset for layer in self.cache):
            self._clear()  # interrupted between two layers, or before the positions were counted
        self.drop_ahead()
        self._answer, self._accepted = None, 0

    def accept(self, token: int) -> None:
        """Append a chosen token. It may already have been processed, before it was read."""
        self.tokens.append(token)
        self._accepted += 1

    @property
    def ahead(self) -> int:
        """How many processed positions would have to be dropped if the answer in progress ended here."""
        if self._answer is None:
            return 0
        return max(self.processed - len(self.tokens) + (self._accepted > 0), 0)

    def drop_ahead(self) -> None:
        """Drop the positions processed ahead of the answer's tokens, as if they had never been processed."""
        n = self.ahead
        self._trim(n)
        self.computed -= n

    @one_thread
    def prefill(self, progress: Progress | None = None) -> mx.array:
        """Process all unprocessed tokens, in chunks; returns the logits of the last one [1, V], unevaluated.

        progress is called with (tokens done, total tokens) at the start and after each chunk. Raises OptionError for an
        empty context.
        """
        if not self.tokens:
            raise OptionError("the context is empty; extend the session first")
        if self.processed == len(self.tokens):  # nothing new: process the last token again for its logits
            self._trim(1)
        self.compile_step()
        full_at = self.processed + self.positions_left
        table = self.model.config.n_positions
        slide = last_slide(full_at, len(self.tokens), table, self.slide_keep, self.slide_points)
        return self._prefill(slide, progress)

    def give_cache_away(self) -> list[Any]:
        """Hand over the cache to a batch. After that, only `prefill_after_full_table` can use the context again."""
        cache, self.cache = self.cache, self._empty_cache()
        return cache

    def prefill_after_full_table(self) -> mx.array:
        """Continue with a new cache after the one that was given away has filled the position table.

        All tokens but the newest were processed with the old cache. Slides, processes the tokens that the slide keeps
        and the newest token, and returns its logits [1, V]. Raises ContextError if the context does not slide.
        """
        self.processed = len(self.tokens) - 1
        table = self.model.config.n_positions
        return self._prefill(slide_at(self.processed, table, self.slide_keep, self.slide_points), None)

    def _prefill(self, slide: Slide | None, progress: Progress | None) -> mx.array:
        end = len(self.tokens)
        pending = (self._begin_slide(slide) if slide else []) + self.tokens[self.processed : end]
        self.processed = end - len(pending)
        chunk_size = self.options.prefill_chunk
        try:
            if progress:
                progress(0, len(pending))
            for start in range(0, len(pending), chunk_size):
                chunk = pending[start : start + chunk_size]
                hidden = self._run(mx.array([chunk]))
                self.processed += len(chunk)
                if self.processed < end:
                    mx.eval([layer.state for layer in self.cache])
                    mx.clear_cache()
                if progress:
                    progress(start + len(chunk), len(pending))
        except BaseException:
            if slide and self.processed < slide.at:  # the cache was rebuilt only in part
                self._clear()
            raise
        return self._head(hidden[:, -1])

    def compile_step(self) -> None:
        """Take the compiled step, if steps are compiled here: a new one where weights have changed since."""
        compiles = self.has_own_cache and type(self.model.decoder) is GPT2 and device.compiles_steps()
        self._compiled = compiled_step(self.model.decoder) if compiles else None

    def process(self, tokens: mx.array) -> mx.array:
        """Send the newest tokens [n] through the network; returns their logits [n, V], unevaluated.

        The first is the newest token; the others are guesses, at most `guessable` of them. Slides first if the table is
        full. Raises ContextError if the context does not slide.
        """
        if not self.positions_left:
            self._slide()
        for layer in self.cache:
            if isinstance(layer, RotatingKVCache):
                layer.slack = len(tokens) - 1  # so that the guesses can be dropped again
        hidden = self._run(tokens[None])
        self.processed += len(tokens)
        return self._head(hidden[0])

    def _slide(self) -> None:
        table, chunk_size = self.model.config.n_positions, self.options.prefill_chunk
        kept = self._begin_slide(slide_at(self.processed, table, self.slide_keep, self.slide_points))
        try:
            for start in range(0, len(kept), chunk_size):
                mx.eval(self._run(mx.array([kept[start : start + chunk_size]])))
        except BaseException:  # the cache was rebuilt only in part
            self._clear()
            raise
        mx.clear_cache()

    def _run(self, ids: mx.array) -> mx.array:
        """Send the next positions through every layer: ids [1, L] -> hidden states [1, L, D]."""
        self.computed += ids.shape[1]
        if self._observer:
            self._observer.before_layers(ids)
        try:
            if self._compiled and ids.shape[1] == 1 and self.cache[0].offset:
                hidden = self._compiled(ids, self.cache)
            else:
                hidden = self.model.decoder.hidden(ids, self.cache)
        except BaseException:  # interrupted between two layers: their caches no longer agree
            self._clear()
            raise
        if ids.shape[1] > 1:
            self.send_off()
        if self._observer:
            self._observer.after_layers(hidden)
        return hidden

    def send_off(self) -> None:
        """Let the device compute what the cache holds.

        After one token, that is part of its logits. After several, or a cut, the cache may hold arrays that nothing
        else needs yet; and what a thread has not sent off, no other can.
        """
        mx.async_eval([layer.state for layer in self.cache])

    def _head(self, hidden: mx.array) -> mx.array:
        logits = self.model.decoder.head(hidden)
        if self._observer:
            self._observer.after_head(logits)
        return logits

    def _trim(self, n: int) -> None:
        """Remove the newest n tokens from the cache. Clears the cache if it cannot give them back."""
        left = self.processed - n
        if n == 0:
            return
        slid_at = self.slide.at if self.slide else 0
        if left >= slid_at and all(_trims(layer, n) for layer in self.cache) and {x.trim(n) for x in self.cache} == {n}:
            self.processed = left
            self.send_off()
            return
        self._clear()

    def _clear(self) -> None:
        """Empty the cache, so that the context is processed again. Raises ContextError if its tokens are unknown."""
        if self.untracked:
            raise ContextError(
                "the session's file does not say which tokens its cache holds, so it can neither slide nor be rewound"
                " into that part; start a new session from the text"
            )
        self.cache, self.processed, self.slide = self._empty_cache(), 0, None

    def _begin_slide(self, slide: Slide) -> list[int]:
        """Empty the cache for a slide; returns the tokens that it keeps, which have to be processed again."""
        if self.options.overflow == "stop":
            raise ContextError(
                f"the model's table of {self.model.config.n_positions:,} positions is full;"
                ' use overflow="slide" to continue past its end'
            )
        self._clear()
        self.processed, self.slide, self.slides = slide.at, slide, self.slides + 1
        return self.tokens[: slide.keep] + self.tokens[slide.start : slide.at]

    def _empty_cache(self) -> list[Any]:
        if self._given is not None:
            return list(copy.deepcopy(self._given))
        size, keep = self.options.max_kv_size, self.options.keep
        if size is not None:  # larger than the position table makes no difference
            size = min(size, max(self.model.config.n_positions, keep + 1))
        return list(make_cache(self.model.config.n_layer, size, keep))


def _trims(layer: Any, n: int) -> bool:
    """Whether a layer's cache can remove its newest n positions."""
    trimmable = getattr(layer, "trimmable", None)  # mlxgen's own caches say how many
    return n <= trimmable if isinstance(trimmable, int) else n == 1 or bool(layer.is_trimmable())
