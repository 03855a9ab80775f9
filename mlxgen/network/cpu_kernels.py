"""Attention and sigmoid in the form that is fastest on MLX's CPU backend. Metal uses MLX's own fused kernels.

On the CPU backend, exp and every function built on it cost as much as dozens of multiplications. Here, exp is built
from multiplications, additions and shifts (Cody and Waite, 1980): 2^t is 2^n, written into the exponent bits, times a
polynomial in f, where n is t rounded and f = t - n. The result is as accurate as MLX's exp, and faster on large
arrays. Small arrays use MLX's functions, because there each operation costs the same few microseconds.
"""

from __future__ import annotations

import math
from typing import Any, cast

import mlx.core as mx

from mlxgen import device

LARGE = 16_384  # from this many elements on, many cheap operations cost less than one exp
MASKED = -1e30  # added to masked scores; finite, so that a fully masked row does not become NaN

LOG2_E = 1 / math.log(2)
# Adding this to a small number rounds it to a whole number, which then stands in the lowest bits of the sum.
ROUND = 1.5 * 2.0**23
# 2^f for f in [-1/2, 1/2]: the polynomial of degree 5 with the least relative error (7.5e-8), highest power first.
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
    """The gradient of 2^t, which fine-tuning needs: MLX cannot differentiate operations on bits."""
    return cotangent * output * math.log(2)


def sigmoid(x: mx.array) -> mx.array:
    """1 / (1 + e^-x)."""
    if not _pays(x, x.size):
        return mx.sigmoid(x)
    return 1 / (1 + exp2(mx.minimum(mx.maximum(x * -LOG2_E, -126.0), 126.0)))


def attention(q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: Any = None) -> mx.array:
    """Attention, as mx.fast.scaled_dot_product_attention: q, k, v [B, H, positions, D/H] -> [B, H, L, D/H].

    mask: None, "causal", a bool array, or an array of numbers that are added to the scores.
    """
    L, S = q.shape[2], k.shape[2]
    if L == 1 and mask is None and q.dtype == mx.float32 and device.on_cpu():
        # Keys times a column is faster than a row times transposed keys: the keys are read in memory order.
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
    """Whether the form without exp is faster for a function that would compute n_exp exponentials."""
    return n_exp >= LARGE and x.dtype == mx.float32 and device.on_cpu()
