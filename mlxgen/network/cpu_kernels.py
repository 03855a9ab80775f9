"""The decoder's costly functions in the form that MLX's CPU backend computes fastest. Metal has fused kernels instead.

There, exp costs as much as dozens of multiplications, and so do all functions built on it. So exp is made of
multiplications, additions and shifts: 2^t is 2^(whole part), which is written into the exponent's bits, times a
polynomial of the rest (Cody and Waite, 1980). It is as exact as MLX's own, and faster on large arrays; on small ones,
where each operation costs the same few microseconds, MLX's own functions are used.
"""

from __future__ import annotations

import math
from typing import Any, cast

import mlx.core as mx

from mlxgen import device

LARGE = 16_384  # elements from which many cheap operations cost less than one exp
MASKED = -1e30  # added to a score that must not count; finite, so that a row that may read nothing is not NaN

LOG2_E = 1 / math.log(2)
# Adding it to a small number leaves no bits for a fraction: the sum is rounded to a whole number, in the lowest bits.
ROUND = 1.5 * 2.0**23
# 2^f for f in [-1/2, 1/2], highest power first: the polynomial of degree 5 with the least relative error, 7.5e-8.
POWER_OF_2 = (
    0.001327646679310052,
    0.009675541292994498,
    0.05550713289582651,
    0.24022119724872443,
    0.6931469670549113,
    1.0000000716543658,
)


def exp2(t: mx.array) -> mx.array:
    """2^t for float32 t in [-126, 126]."""
    return cast(mx.array, _exp2(t))


@mx.custom_function
def _exp2(t: mx.array) -> mx.array:
    rounded = t + ROUND
    f = t - (rounded - ROUND)
    power = POWER_OF_2[0] * f + POWER_OF_2[1]
    for coefficient in POWER_OF_2[2:]:
        power = power * f + coefficient
    exponent = mx.left_shift(rounded.view(mx.int32), mx.array(23, mx.int32))
    return (power.view(mx.int32) + exponent).view(mx.float32)


@_exp2.vjp
def _exp2_vjp(t: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
    """Bits have no derivative, but 2^t has: fine-tuning goes through here."""
    return cotangent * output * math.log(2)


def sigmoid(x: mx.array) -> mx.array:
    """1 / (1 + e^-x)."""
    if not _pays(x, x.size):
        return mx.sigmoid(x)
    return 1 / (1 + exp2(mx.minimum(mx.maximum(x * -LOG2_E, -126.0), 126.0)))


def attention(q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: Any = None) -> mx.array:
    """mx.fast.scaled_dot_product_attention: [B, H, L, D/H]. mask: None, "causal", bool, or numbers to add."""
    L, S = q.shape[2], k.shape[2]
    if L == 1 and mask is None and q.dtype == mx.float32 and device.on_cpu():
        # A column on the right is faster than a row on the left: the keys are read as they lie.
        scores = (k @ (q * scale).swapaxes(2, 3)).swapaxes(2, 3)  # [B, H, 1, S]
        return mx.softmax(scores, axis=-1) @ v
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
    return n_exp >= LARGE and x.dtype == mx.float32 and device.on_cpu()
