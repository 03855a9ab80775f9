"""Attention and gates in the form that is fastest on MLX's CPU backend. Metal uses MLX's own fused kernels.

Where mlxgen.cpu_operations can be used, that is its compiled operations. Elsewhere, exp and every function built on it
cost as much as dozens of multiplications: large arrays use mlxgen.cpu_exp, and small ones MLX's functions, because
there each operation costs the same few microseconds.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mlxgen import cpu_operations, device
from mlxgen.cpu_exp import LARGE, LOG2_E, exp2

ROWS = 128  # queries that causal attention computes at a time: their scores are smaller, and read no later keys
MASKED = -1e30  # added to masked scores; finite, so that a fully masked row does not become NaN


def gate(x: mx.array, linear: float, cubic: float = 0.0) -> mx.array:
    """x * sigmoid(linear x + cubic x^3)."""
    if cpu_operations.available_for(x):
        return cpu_operations.gate(x, linear, cubic)
    return x * sigmoid(x * (linear + cubic * x * x) if cubic else linear * x)


def sigmoid(x: mx.array) -> mx.array:
    """1 / (1 + e^-x)."""
    if not _pays(x, x.size):
        return mx.sigmoid(x)
    # The least power of 2 is taken off, so that the result is 0 far out: activations multiply it by x.
    return 1 / (1 + exp2(mx.minimum(mx.maximum(x * -LOG2_E, -126.0), 126.0))) - 2.0**-126


def attention(q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: Any = None) -> mx.array:
    """Attention, as mx.fast.scaled_dot_product_attention: q, k, v [B, H, positions, D/H] -> [B, H, L, D/H].

    mask: None, "causal", a bool array, or an array of numbers that are added to the scores.
    """
    usual = k.shape == v.shape and q.shape[:2] == k.shape[:2] and q.shape[2] <= k.shape[2] and q.shape[3] == k.shape[3]
    if usual and cpu_operations.available_for(q, k, v) and (not isinstance(mask, mx.array) or mask.dtype == mx.bool_):
        return cpu_operations.attention(q, k, v, scale, mask)
    return _attention(q, k, v, scale, mask)


def _attention(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Any) -> mx.array:
    L, S = q.shape[2], k.shape[2]
    if L == 1 and mask is None and q.dtype == mx.float32 and device.on_cpu():
        # Keys times a column is faster than a row times transposed keys: the keys are read in memory order.
        scores = (k @ (q * scale).swapaxes(2, 3)).swapaxes(2, 3)  # [B, H, 1, S]
        return mx.softmax(scores, axis=-1) @ v
    if mask == "causal" and L > ROWS and device.on_cpu():
        parts = []
        for start in range(0, L, ROWS):
            end = min(start + ROWS, L)
            read = S - L + end  # the keys after them are of later positions
            parts.append(_attention(q[:, :, start:end], k[:, :, :read], v[:, :, :read], scale, mask))
        return mx.concatenate(parts, axis=2)
    if not _pays(q, q.size // q.shape[3] * S):
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)
    scores = (q * (scale * LOG2_E)) @ k.swapaxes(2, 3)  # [B, H, L, S], as powers of 2
    if isinstance(mask, str):
        mask = mx.arange(S - L, S)[:, None] >= mx.arange(S)
    if mask is not None:
        scores = scores + (mx.where(mask, 0.0, MASKED) if mask.dtype == mx.bool_ else mask)
    weights = exp2(mx.maximum(scores - mx.max(scores, axis=-1, keepdims=True), -126.0))
    return (weights @ v) / mx.sum(weights, axis=-1, keepdims=True)


def _pays(x: mx.array, n_exp: int) -> bool:
    """Whether the form without exp is faster for a function that would compute n_exp exponentials."""
    return n_exp >= LARGE and x.dtype == mx.float32 and device.on_cpu()
