"""The tokens so far and the cache that matches them: what is processed when, and what leaves the cache.

What the cache holds is decided by the tokens alone, however they came in. While the position table has room, it is all
tokens processed. When it is full and one more has to be processed, the context slides: the cache is rebuilt from the
first `slide_keep` tokens and the newest of the others, half a table in all, from position 0.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mlxgen import device
from mlxgen.errors import ContextError, OptionError
from mlxgen.generation.observer import Observer
from mlxgen.generation.request import ContextOptions, Progress
from mlxgen.generation.sliding import Slide, last_slide, slide_at
from mlxgen.model import Model
from mlxgen.network.cache import RotatingKVCache, make_cache
from mlxgen.network.compiled_step import CompiledStep
from mlxgen.network.decoder import GPT2

MOST_GUESSES = 15  # with the token before them 16 rows


class CachedContext:
    """A context, and what of it each layer has processed.

    cache: an empty cache of mlx-lm's protocol, one entry a layer, instead of our own. observer: is told of every pass
    through the network. Raises OptionError.
    """

    def __init__(
        self,
        model: Model,
        options: ContextOptions,
        cache: Sequence[Any] | None = None,
        observer: Observer | None = None,
    ) -> None:
        options.check_table(model.config.n_positions)
        self.model, self.options = model, options
        self.tokens: list[int] = []
        self.untracked = 0  # positions before the tokens, from a file that does not say which tokens they were
        self.processed = 0  # how many of the tokens the cache covers
        self.computed = 0  # positions put through the network and kept, in the context's life
        self.slide_keep = options.keep  # how many of the first tokens the next slide keeps
        self.slide_points: list[int] = []  # in order, where the newest part may begin after a slide; empty: anywhere
        self.slides = 0  # how often the context slid
        self.slide: Slide | None = None  # the newest slide that the cache shows
        given = list(cache) if cache is not None else None
        self._given = copy.deepcopy(given)  # stays empty, to start again from
        self.cache: list[Any] = given if given is not None else self._empty_cache()
        self._observer = observer
        self._answer: object | None = None  # which answer is under way
        self._accepted = 0  # tokens of that answer so far
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
    def has_own_cache(self) -> bool:
        """Whether the cache is mlxgen's, and not one that was given."""
        return self._given is None

    @property
    def positions_left(self) -> int:
        """How many more tokens can be processed before the position table is full."""
        return max(self.model.config.n_positions - int(self.cache[0].offset), 0)

    @property
    def room(self) -> int | None:
        """How many more tokens the context can take; None when it slides and so never ends."""
        if self.options.overflow == "slide":
            return None
        return self.model.config.n_positions - self.untracked - len(self.tokens)

    @property
    def guessable(self) -> int:
        """How many tokens more than one can be processed at once and taken back again."""
        return min(MOST_GUESSES, max(self.positions_left - 1, 0))

    def begin_answer(self) -> object:
        """End the answer under way, if there is one, and begin another; returns what identifies it."""
        self.end_answer()
        self._answer = object()
        return self._answer

    def is_under_way(self, answer: object) -> bool:
        """Whether nothing else was done with the context since the answer began."""
        return self._answer is answer

    def end_answer(self) -> None:
        """End the answer under way: the cache then covers all but the newest of its tokens."""
        self.take_back_ahead()
        self._answer, self._accepted = None, 0

    def accept(self, token: int) -> None:
        """Append a chosen token. It may have been processed already, ahead of being read."""
        self.tokens.append(token)
        self._accepted += 1

    @property
    def ahead(self) -> int:
        """Newest processed positions that the cache would not hold if the answer under way ended here."""
        if self._answer is None:
            return 0
        return max(self.processed - len(self.tokens) + (self._accepted > 0), 0)

    def take_back_ahead(self) -> None:
        """Take what is processed ahead of the answer's tokens out of the cache, as if it had never been processed."""
        n = self.ahead
        self._take_out(n)
        self.computed -= n

    def prefill(self, progress: Progress | None = None) -> mx.array:
        """Process every token not yet in the cache, in chunks; returns the last one's logits [1, V], unevaluated.

        progress is called with (tokens done, tokens in all) after each chunk.
        """
        if not self.tokens:
            raise OptionError("the context is empty; extend the session first")
        if self.processed == len(self.tokens):  # nothing new: the last token's logits are wanted again
            self._take_out(1)
        self.compile_step()
        full_at = self.processed + self.positions_left
        table = self.model.config.n_positions
        slide = last_slide(full_at, len(self.tokens), table, self.slide_keep, self.slide_points)
        return self._prefill(slide, progress)

    def give_cache_away(self) -> list[Any]:
        """Hand over the cache, which goes on elsewhere; only `prefill_after_full_table` can use the context again."""
        cache, self.cache = self.cache, self._empty_cache()
        return cache

    def prefill_after_full_table(self) -> mx.array:
        """Take up the context where the cache that was given away has filled the position table.

        All tokens but the newest were processed elsewhere. Slides, processes what the slide keeps and the newest token,
        and returns its logits [1, V]. Raises ContextError where the context does not slide.
        """
        self.processed = len(self.tokens) - 1
        table = self.model.config.n_positions
        return self._prefill(slide_at(self.processed, table, self.slide_keep, self.slide_points), None)

    def _prefill(self, slide: Slide | None, progress: Progress | None) -> mx.array:
        end = len(self.tokens)
        todo = (self._restart(slide) if slide else []) + self.tokens[self.processed : end]
        self.processed = end - len(todo)
        chunk_size = self.options.prefill_chunk
        try:
            if progress:
                progress(0, len(todo))
            for start in range(0, len(todo), chunk_size):
                chunk = todo[start : start + chunk_size]
                hidden = self._run(mx.array([chunk]))
                self.processed += len(chunk)
                if self.processed < end:
                    mx.eval([layer.state for layer in self.cache])
                    mx.clear_cache()
                if progress:
                    progress(start + len(chunk), len(todo))
        except BaseException:
            if slide and self.processed < slide.at:  # what the slide keeps is only half in
                self._forget()
            raise
        return self._head(hidden[:, -1])

    def compile_step(self) -> None:
        """Compile the step anew, where it is compiled: the weights may have changed since the last answer."""
        compiles = self.has_own_cache and type(self.model.decoder) is GPT2 and device.compiles_steps()
        self._compiled = CompiledStep(self.model.decoder) if compiles else None

    def process(self, tokens: mx.array) -> mx.array:
        """Put the newest tokens [n] through the network; returns their logits [n, V], a graph and not yet numbers.

        Where the table is full, it slides first. All but the first token are guesses, at most `guessable` of them.
        """
        if not self.positions_left:
            self._slide()
        for layer in self.cache:
            if isinstance(layer, RotatingKVCache):
                layer.slack = len(tokens) - 1  # the guesses may be taken back
        hidden = self._run(tokens[None])
        self.processed += len(tokens)
        return self._head(hidden[0])

    def _slide(self) -> None:
        table, chunk_size = self.model.config.n_positions, self.options.prefill_chunk
        kept = self._restart(slide_at(self.processed, table, self.slide_keep, self.slide_points))
        try:
            for start in range(0, len(kept), chunk_size):
                mx.eval(self._run(mx.array([kept[start : start + chunk_size]])))
        except BaseException:  # only half in
            self._forget()
            raise
        mx.clear_cache()

    def _run(self, ids: mx.array) -> mx.array:
        """The next positions through every layer: ids [1, L] -> [1, L, D]."""
        self.computed += ids.shape[1]
        if self._observer:
            self._observer.before_layers(ids)
        try:
            if self._compiled and ids.shape[1] == 1 and self.cache[0].offset:
                hidden = self._compiled(ids, self.cache)
            else:
                hidden = self.model.decoder.hidden(ids, self.cache)
        except BaseException:  # interrupted between two layers, which no longer agree
            self._forget()
            raise
        if self._observer:
            self._observer.after_layers(hidden)
        return hidden

    def _head(self, hidden: mx.array) -> mx.array:
        logits = self.model.decoder.head(hidden)
        if self._observer:
            self._observer.after_head(logits)
        return logits

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
        if self.untracked:
            raise ContextError(
                "the session came from a file that does not say which tokens it holds: it can neither slide nor go back"
                " before what was added here; start a new session from the text"
            )
        self.cache, self.processed, self.slide = self._empty_cache(), 0, None

    def _restart(self, slide: Slide) -> list[int]:
        """Empty the cache for a slide; returns the tokens it keeps, still to be processed."""
        if self.options.overflow == "stop":
            raise ContextError(
                f'the model\'s table of {self.model.config.n_positions:,} positions is full; overflow="slide" goes on'
            )
        self._forget()
        self.processed, self.slide, self.slides = slide.at, slide, self.slides + 1
        return self.tokens[: slide.keep] + self.tokens[slide.start : slide.at]

    def _empty_cache(self) -> list[Any]:
        if self._given is not None:
            return list(copy.deepcopy(self._given))
        return list(make_cache(self.model.config.n_layer, self.options.max_kv_size, self.options.keep))


def _trims(layer: Any, n: int) -> bool:
    """Whether a layer's cache can forget its newest n positions."""
    trimmable = getattr(layer, "trimmable", None)  # ours say how many
    return n <= trimmable if isinstance(trimmable, int) else n == 1 or bool(layer.is_trimmable())
