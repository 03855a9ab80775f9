"""One decode step as one compiled function, so that Python makes a single call per token.

The buffers of the cache keep their size from step to step and the position is an array, so the function is traced only
once per buffer size. Compilation also fuses consecutive elementwise operations into one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mlxgen.network.cache import KVCache, RotatingKVCache
from mlxgen.network.decoder import GPT2


class CompiledStep:
    """The decoder compiled for one token. It needs mlxgen's own caches, and they must not be empty.

    The first call captures the decoder's weights: make a new CompiledStep when they may have changed.
    """

    def __init__(self, decoder: GPT2) -> None:
        self._decoder = decoder
        self._step = mx.compile(self._hidden)

    def __call__(self, ids: mx.array, cache: Sequence[KVCache | RotatingKVCache]) -> mx.array:
        """Process ids [1, 1] at the next position and add it to the caches; returns the hidden state [1, 1, D]."""
        slots = [layer.reserve() for layer in cache]
        _, index, filled = slots[0]  # the same in every layer
        where = mx.array([cache[0].offset, index, filled])
        hidden, written = self._step(ids, where, [slot.pair for slot in slots])
        del slots  # drop the other references to the buffers, so that MLX writes to them in place
        for layer, pair in zip(cache, written, strict=True):
            layer.commit(pair, index)
        return hidden

    def _hidden(self, ids: mx.array, where: mx.array, pairs: list[mx.array]) -> tuple[mx.array, list[mx.array]]:
        """where: the position, its index in the buffers, and how many entries are then filled: int [3]."""
        mask = mx.arange(pairs[0].shape[2]) < where[2]
        layers = [_Buffer(pair, where[:1], where[1:2], mask) for pair in pairs]
        hidden = self._decoder.hidden(ids, layers)
        return hidden, [layer.pair for layer in layers]


class _Buffer:
    """One layer's cache while the step is traced: a buffer of fixed size, written at an index that is an array."""

    def __init__(self, pair: mx.array, offset: mx.array, index: mx.array, mask: mx.array) -> None:
        self.pair = pair
        self.offset, self._index, self._mask = offset, index, mask

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        return self._mask

    def update_pair(self, pair: mx.array) -> mx.array:
        self.pair = mx.slice_update(self.pair, pair, self._index, axes=(2,))
        return self.pair
