"""One decode step as one compiled function: what Python builds for each token is a single call.

The buffers of the cache keep their size from step to step, and the position is an array, so that the function is traced
once for each size. Elementwise operations that follow one another become one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mlxgen.network.cache import KVCache, RotatingKVCache
from mlxgen.network.decoder import GPT2


class CompiledStep:
    """The decoder on one token and caches of mlxgen's own that are not empty.

    Traced with the weights that the decoder has at the first call: make a new one when they may have changed.
    """

    def __init__(self, decoder: GPT2) -> None:
        self._decoder = decoder
        self._step = mx.compile(self._hidden)

    def __call__(self, ids: mx.array, cache: Sequence[KVCache | RotatingKVCache]) -> mx.array:
        """Process ids [1, 1] at the next position: the last hidden state [1, 1, D]. The caches take its keys in."""
        places = [layer.make_place() for layer in cache]
        _, _, at, held = places[0]  # the same in every layer
        where = mx.array([cache[0].offset, at, held])
        hidden, *written = self._step(ids, where, [place.keys for place in places], [place.values for place in places])
        del places  # so that nobody else holds the buffers, and they are written in place
        for layer, keys, values in zip(cache, *written, strict=True):
            layer.take(keys, values, at)
        return hidden

    def _hidden(
        self, ids: mx.array, where: mx.array, keys: list[mx.array], values: list[mx.array]
    ) -> tuple[mx.array, list[mx.array], list[mx.array]]:
        """where: the position, its place in the buffers, and how many of their places are then filled, int [3]."""
        mask = mx.arange(keys[0].shape[2]) < where[2]
        layers = [_Buffers(k, v, where[:1], where[1:2], mask) for k, v in zip(keys, values, strict=True)]
        hidden = self._decoder.hidden(ids, layers)
        return hidden, [layer.keys for layer in layers], [layer.values for layer in layers]


class _Buffers:
    """One layer's cache while the step is traced: buffers of fixed size, written at a place that is an array."""

    def __init__(self, keys: mx.array, values: mx.array, offset: mx.array, place: mx.array, mask: mx.array) -> None:
        self.keys, self.values = keys, values
        self.offset, self._place, self._mask = offset, place, mask

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        return self._mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.keys = mx.slice_update(self.keys, keys, self._place, axes=(2,))
        self.values = mx.slice_update(self.values, values, self._place, axes=(2,))
        return self.keys, self.values
