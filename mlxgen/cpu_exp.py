"""The exponential function in the form that is fastest on MLX's CPU backend for large arrays.

There, MLX's exp costs as much as dozens of multiplications. Here, it is built from multiplications, additions and
shifts (Cody and Waite, 1980): 2^t is 2^n, written into the exponent bits, times a polynomial in f, where n is t rounded
and f = t - n. The result is as accurate as MLX's.
"""

from __future__ import annotations

import math
from typing import cast

import mlx.core as mx

from mlxgen import device

LARGE = 16_384  # from this many elements on, many cheap operations cost less than one exp

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


def exp_of_negative(x: mx.array) -> mx.array:
    """e^x for x <= 0, on any device. On the CPU, large float32 arrays give e^-87 for everything below."""
    if x.size < LARGE or x.dtype != mx.float32 or not device.on_cpu():
        return mx.exp(x)
    return exp2(mx.maximum(x * LOG2_E, -126.0))
