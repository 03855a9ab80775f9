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
        _, _, index, filled = slots[0]  # the same in every layer
        where = mx.array([cache[0].offset, index, filled])
        hidden, *written = self._step(ids, where, [slot.keys for slot in slots], [slot.values for slot in slots])
        del slots  # drop the other references to the buffers, so that MLX writes to them in place
        for layer, keys, values in zip(cache, *written, strict=True):
            layer.commit(keys, values, index)
        return hidden

    def _hidden(
        self, ids: mx.array, where: mx.array, keys: list[mx.array], values: list[mx.array]
    ) -> tuple[mx.array, list[mx.array], list[mx.array]]:
        """where: the position, its index in the buffers, and how many entries are then filled: int [3]."""
        mask = mx.arange(keys[0].shape[2]) < where[2]
        layers = [_Buffers(k, v, where[:1], where[1:2], mask) for k, v in zip(keys, values, strict=True)]
        hidden = self._decoder.hidden(ids, layers)
        return hidden, [layer.keys for layer in layers], [layer.values for layer in layers]


class _Buffers:
    """One layer's cache while the step is traced: buffers of fixed size, written at an index that is an array."""

    def __init__(self, keys: mx.array, values: mx.array, offset: mx.array, index: mx.array, mask: mx.array) -> None:
        self.keys, self.values = keys, values
        self.offset, self._index, self._mask = offset, index, mask

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        return self._mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.keys = mx.slice_update(self.keys, keys, self._index, axes=(2,))
        self.values = mx.slice_update(self.values, values, self._index, axes=(2,))
        return self.keys, self.values
