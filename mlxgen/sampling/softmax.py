"""Softmax over a whole vocabulary, as accurate as float32 allows.

MLX's CPU backend sums a row sequentially, which loses the last two or three digits over 50,000 tokens. Summing in
blocks keeps them, on every backend.
"""

from __future__ import annotations

import mlx.core as mx

from mlxgen import cpu_operations
from mlxgen.cpu_exp import exp_of_negative

BLOCK = 256  # about the square root of a vocabulary


def softmax(logits: mx.array) -> mx.array:
    """Probabilities from logits: float32 [..., V] -> [..., V]."""
    weights = exponentials(logits)
    return weights / total(weights)


def exponentials(logits: mx.array) -> mx.array:
    """Probabilities, each divided by the highest: float32 [..., V] -> [..., V]."""
    if cpu_operations.available_for(logits):
        return cpu_operations.exponentials(logits)
    return mx.exp(logits - mx.max(logits, axis=-1, keepdims=True))


def log_softmax(logits: mx.array) -> mx.array:
    """Log-probabilities (natural logarithm) from logits: float32 [..., V] -> [..., V]."""
    return logits - log_total(logits)


def log_total(logits: mx.array, highest: mx.array | None = None) -> mx.array:
    """The logarithm of the sum of exponentials, so that logits minus it are log-probabilities: [..., V] -> [..., 1].

    highest: each row's highest logit [..., 1], if it is known.
    """
    if cpu_operations.available_for(logits):
        return cpu_operations.log_total(logits)
    if highest is None:
        highest = mx.max(logits, axis=-1, keepdims=True)
    return highest + mx.log(total(exp_of_negative(logits - highest)))


def total(x: mx.array) -> mx.array:
    """The sum of each row: float32 [..., V] -> [..., 1]."""
    return mx.sum(mx.sum(_blocks(x), axis=-1), axis=-1, keepdims=True)


def total_before(x: mx.array) -> mx.array:
    """The sum of the entries before each entry of a row: float32 [..., V] -> [..., V], 0 for the first."""
    blocks = _blocks(x)
    before = mx.cumsum(mx.sum(blocks, axis=-1), axis=-1, inclusive=False)  # [..., blocks]
    within = mx.cumsum(blocks, axis=-1, inclusive=False)
    return (within + before[..., None]).reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]


def _blocks(x: mx.array) -> mx.array:
    """Split each row into blocks: [..., V] -> [..., ceil(V / BLOCK), BLOCK], the last one padded with zeros."""
    padded = mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % BLOCK)])
    return padded.reshape(*x.shape[:-1], -1, BLOCK)
