"""One decode step as one compiled function, so that Python makes a single call per token.

The buffers of the cache keep their size from step to step and the position is an array, so the function is traced only
once per buffer size. Compilation also fuses consecutive elementwise operations into one kernel.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import mlx.core as mx
from mlx.utils import tree_flatten

from mlxgen.network.cache import KVCache, RotatingKVCache
from mlxgen.network.decoder import GPT2

_steps: dict[int, CompiledStep] = {}  # by the id of a decoder, as long as that exists


def compiled_step(decoder: GPT2) -> CompiledStep:
    """The decoder's compiled step: the same one from answer to answer, until a weight changes."""
    known = _steps.get(id(decoder))
    if known is None:
        weakref.finalize(decoder, _steps.pop, id(decoder), None)
    elif known.weights == weight_addresses(decoder):
        return known
    _steps[id(decoder)] = CompiledStep(decoder)
    return _steps[id(decoder)]


def weight_addresses(decoder: GPT2) -> list[int]:
    """Where the decoder's weights lie in memory.

    A weight that was replaced, or written into while a compiled step holds it, lies elsewhere than before.
    """
    import numpy as np  # its import takes a third of a short command's time, and the CPU compiles no steps

    weights = [array for _, array in tree_flatten(decoder.parameters())]
    readable = [array.view(mx.uint16) if array.dtype == mx.bfloat16 else array for array in weights]
    buffers = [np.asarray(memoryview(array)) for array in readable]
    return [buffer.__array_interface__["data"][0] for buffer in buffers]


class CompiledStep:
    """The decoder compiled for one token. It needs mlxgen's own caches, and they must not be empty.

    The first call captures the decoder's weights; `weights` are their addresses. See `compiled_step`.
    """

    def __init__(self, decoder: GPT2) -> None:
        self.weights = weight_addresses(decoder)
        reference = weakref.ref(decoder)  # the step must not keep alive what keeps it

        def hidden(ids: mx.array, where: mx.array, pairs: list[mx.array]) -> tuple[mx.array, list[mx.array]]:
            """where: the position, its index in the buffers, and how many entries are then filled: int [3]."""
            mask = mx.arange(pairs[0].shape[2]) < where[2]
            layers = [_Buffer(pair, where[:1], where[1:2], mask) for pair in pairs]
            decoder = reference()
            assert decoder is not None  # whoever calls has it
            return decoder.hidden(ids, layers), [layer.pair for layer in layers]

        self._step = mx.compile(hidden)

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
