"""The k highest of very many numbers, without sorting all of them."""

from __future__ import annotations

import mlx.core as mx

BLOCK = 256


def k_highest(values: mx.array, k: int) -> tuple[mx.array, mx.array]:
    """The k highest of the values [N], highest first, and their indices: [k] and int32 [k].

    Equal values come in the order of their indices. The k highest lie in the k blocks with the highest maxima, so only
    those blocks are sorted. On Metal, this is a kernel for each step; sorting a vocabulary there takes a dozen.
    """
    blocks = mx.pad(values, [(0, -len(values) % BLOCK)], constant_values=-mx.inf).reshape(-1, BLOCK)
    numbers = mx.arange(len(blocks))
    if k < len(blocks):
        numbers = mx.sort(mx.argsort(-mx.max(blocks, axis=1))[:k]).astype(mx.int32)  # in order, for equal values
        blocks = blocks[numbers]
    best = mx.argsort(-blocks.reshape(-1))[:k]  # the sort is stable
    indices = (numbers[:, None] * BLOCK + mx.arange(BLOCK)).reshape(-1)[best]
    # The padding is only reached where values are -inf, too.
    return blocks.reshape(-1)[best], mx.minimum(indices, len(values) - 1).astype(mx.int32)
