"""A session: the tokens so far and the cache that matches them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import mlx.core as mx

from mlxgen.cache import make_cache
from mlxgen.errors import ContextError, OptionError
from mlxgen.model import Model

Overflow = Literal["stop", "slide"]
Progress = Callable[[int, int], None]

PREFILL_CHUNK = 512


class Session:
    """The context and what of it each layer has processed. Only tokens not yet in the cache are ever processed.

    max_kv_size, keep: a rotating cache of that many positions, its first `keep` pinned; None keeps every position.
    overflow: at the end of the position table, "stop" or "slide" (start again from the first `keep` tokens and the
    newest half table). prefill_chunk: how many prompt tokens go through the network at once.
    cache: an empty cache of mlx-lm's protocol, one entry a layer, instead of our own. Raises OptionError.
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
        if prefill_chunk < 1:
            raise OptionError(f"prefill_chunk must be at least 1, not {prefill_chunk}")
        if keep < 0:
            raise OptionError(f"keep must be 0 or more, not {keep}")
        if overflow == "slide" and keep >= half:
            raise OptionError(f"keep must be below half the position table ({half}) to slide, not {keep}")
        self.model, self.overflow, self.keep, self.prefill_chunk = model, overflow, keep, prefill_chunk
        self._max_kv_size = max_kv_size
        self.tokens: list[int] = []
        self.processed = 0  # how many of the tokens have gone through the network
        self.cache = list(cache) if cache is not None else self._empty_cache()

    @property
    def cache_length(self) -> int:
        """Positions that each layer's cache holds now."""
        return int(self.cache[0].size())

    @property
    def table_is_full(self) -> bool:
        """Whether the next token to be processed has no position left."""
        return bool(self.cache[0].offset >= self.model.config.n_positions)

    @property
    def room(self) -> int | None:
        """How many more tokens the context can take; None when it slides and so never ends."""
        return None if self.overflow == "slide" else self.model.config.n_positions - len(self.tokens)

    def extend(self, addition: str | Sequence[int]) -> None:
        """Add text or token ids to the context; they are processed when something is generated.

        Raises ContextError when they do not fit, OptionError for ids outside the vocabulary.
        """
        ids = self.model.tokenizer.encode(addition) if isinstance(addition, str) else list(addition)
        size = self.model.config.vocab_size
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < size:
                raise OptionError(f"token id {token!r} is outside the vocabulary (0 to {size - 1})")
        if self.room is not None and len(ids) > self.room:
            raise ContextError(
                f"the prompt has {len(self.tokens) + len(ids):,} tokens, more than the model's"
                f" {self.model.config.n_positions:,} positions; shorten it, or let it slide"
                ' (overflow="slide", in the terminal --overflow slide)'
            )
        self.tokens.extend(ids)

    def prefill(self, progress: Progress | None = None) -> mx.array:
        """Process every token not yet in the cache, in chunks; returns the last one's logits [1, V], unevaluated.

        progress is called with (tokens done, tokens in all) after each chunk.
        """
        if self.processed == len(self.tokens):  # nothing new: the last token's logits are wanted again
            self.take_back()
        start, end = self.processed, len(self.tokens)
        if progress:
            progress(0, end - start)
        while True:
            hidden = self._process_chunk(self.tokens[self.processed : end])
            if progress:
                progress(self.processed - start, end - start)
            if self.processed == end:
                return self.model.decoder.head(hidden[:, -1])
            mx.eval([layer.state for layer in self.cache])
            mx.clear_cache()

    def process(self, token: mx.array) -> mx.array:
        """Put the one newest token [1] through the network; returns its logits [1, V], a graph and not yet numbers."""
        if self.table_is_full:
            self._slide()
        self.processed += 1
        return self.model.decoder.head(self.model.decoder.hidden(token[:, None], self.cache)[:, -1])

    def take_back(self) -> None:
        """Take the newest processed token out of the cache: it counts as not yet processed."""
        for layer in self.cache:
            if layer.trim(1) != 1:
                raise OptionError("this cache cannot take its newest position back; start a new session")
        self.processed -= 1

    def _process_chunk(self, tokens: list[int]) -> mx.array:
        """Process as many of the tokens as fit into one chunk and the position table -> [1, chunk, D]."""
        if self.table_is_full:
            self._slide()
        room = self.model.config.n_positions - self.cache[0].offset
        chunk = tokens[: min(self.prefill_chunk, room)]
        self.processed += len(chunk)
        return self.model.decoder.hidden(mx.array([chunk]), self.cache)

    def _slide(self) -> None:
        """Rebuild the cache from the first `keep` and the newest tokens processed, half a table in all."""
        if self.overflow == "stop":
            raise ContextError(
                f'the model\'s table of {self.model.config.n_positions:,} positions is full; overflow="slide" goes on'
            )
        half = self.model.config.n_positions // 2
        done = self.processed
        kept = self.tokens[: self.keep] + self.tokens[done - (half - self.keep) : done]
        self.cache = self._empty_cache()
        for start in range(0, half, self.prefill_chunk):
            chunk = mx.array([kept[start : start + self.prefill_chunk]])
            mx.eval(self.model.decoder.hidden(chunk, self.cache))
        mx.clear_cache()

    def _empty_cache(self) -> list[Any]:
        return list(make_cache(self.model.config.n_layer, self._max_kv_size, self.keep))
