"""Compiled operations for MLX's CPU backend, which computes the same in many passes over memory.

operations.c has the functions, and mlx_extension.cpp makes each a node of MLX's lazy graph. Both are compiled where
mlxgen is installed on Linux with a C and a C++ compiler, for the newest version of MLX at that time. Elsewhere, and for
types other than float32, callers use operations of MLX: see `available_for`.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlxgen import blas, device

MLX_VERSION = str(getattr(mx, "__version__", None))  # its types leave it out


def available_for(*arrays: mx.array) -> bool:
    """Whether the compiled operations can be used for these arrays."""
    return device.on_cpu() and _extension() is not None and all(x.dtype == mx.float32 and x.size for x in arrays)


def compiled_for() -> str | None:
    """The version of MLX that they were compiled for; None where they are missing."""
    extension = _module()
    return None if extension is None else str(extension.mlx_version)


def gate(x: mx.array, linear: float, cubic: float) -> mx.array:
    """x * sigmoid(linear x + cubic x^3)."""
    return _call("gate", [x], x.shape, [linear, cubic])


def gelu(x: mx.array) -> mx.array:
    """GELU, exact: x times the normal distribution's cumulative probability. The error is below 3e-7 max(1, |x|)."""
    return _call("gelu", [x], x.shape, [])


def layer_norm(x: mx.array, weight: mx.array, bias: mx.array, epsilon: float) -> mx.array:
    """LayerNorm over the last axis: x [..., D] -> [..., D]. Rows whose squares overflow become NaN."""
    return _call("layer_norm", [x, weight, bias], x.shape, [epsilon])


def exponentials(x: mx.array) -> mx.array:
    """e^x, divided by that of the highest in the last axis: x [..., V] -> [..., V]. Below 1e-38 it is 0."""
    return _call("exponentials", [x], x.shape, [])


def log_total(x: mx.array) -> mx.array:
    """The logarithm of the sum of e^x over the last axis: x [..., V] -> [..., 1]."""
    return _call("log_total", [x], [*x.shape[:-1], 1], [])


def kth_highest(x: mx.array, k: int) -> mx.array:
    """The k-th highest of the last axis, 1 <= k <= V: x [..., V] -> [..., 1]."""
    return _call("kth_highest", [x], [*x.shape[:-1], 1], [k])


def attention(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: mx.array | str | None) -> mx.array:
    """Attention: q, k, v [B, H, positions, D/H] -> [B, H, L, D/H], in memory as [B, L, H, D/H].

    There are S >= L positions of keys. mask: None, "causal", or bools that can be broadcast to [B, H, L, S]. A query
    that may read nothing gives 0.
    """
    (B, H, L, width), S = q.shape, k.shape[2]
    masks = [mx.broadcast_to(mask, (B, H, L, S))] if isinstance(mask, mx.array) else []
    numbers = [scale, float(mask == "causal"), float(len(masks))]
    return _call("attention", [q, k, v, *masks], [B, L, H, width], numbers).transpose(0, 2, 1, 3)


def _call(name: str, inputs: Sequence[mx.array], shape: Sequence[int], numbers: Sequence[float]) -> mx.array:
    result: mx.array = _operation(name)(inputs, shape, numbers)
    return result


def _plain_attention(inputs: Sequence[mx.array], numbers: Sequence[float]) -> mx.array:
    (q, k, v, *masks), (scale, causal, _) = inputs, numbers
    mask = "causal" if causal else masks[0] if masks else None
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask).transpose(0, 2, 1, 3)


# What each operation computes, as functions of its inputs and numbers, in operations of MLX, which has their gradients.
PLAIN: dict[str, Callable[[Sequence[mx.array], Sequence[float]], mx.array]] = {
    "gate": lambda inputs, numbers: inputs[0] * mx.sigmoid(numbers[0] * inputs[0] + numbers[1] * inputs[0] ** 3),
    "gelu": lambda inputs, _: nn.gelu(inputs[0]),
    "layer_norm": lambda inputs, numbers: mx.fast.layer_norm(inputs[0], inputs[1], inputs[2], numbers[0]),
    "exponentials": lambda inputs, _: mx.exp(inputs[0] - mx.max(inputs[0], axis=-1, keepdims=True)),
    "log_total": lambda inputs, _: mx.logsumexp(inputs[0], axis=-1, keepdims=True),
    "kth_highest": lambda inputs, numbers: mx.sort(inputs[0], axis=-1)[..., -int(numbers[0])][..., None],
    "attention": _plain_attention,
}


@cache
def _operation(name: str) -> Any:
    extension, functions = _extension(), blas.compiled_part()
    assert extension and functions  # `available_for` was asked first
    address = ctypes.cast(getattr(functions, f"mlxgen_{name}"), ctypes.c_void_p).value
    return extension.make(name, address, PLAIN[name])


@cache
def _extension() -> Any:
    """The compiled mlx_extension.cpp, if it can be used: it fits only the version of MLX that it was compiled for."""
    extension = _module()
    functions = blas.compiled_part()
    if extension is None or extension.mlx_version != MLX_VERSION or functions is None:
        return None
    if not all(hasattr(functions, f"mlxgen_{name}") for name in PLAIN):  # of older sources
        return None
    try:
        extension.make("", 0, len)([mx.array(0.0)], [1], [])
    except TypeError:  # it does not know MLX's arrays: it was compiled with a nanobind that MLX was not
        return None
    return extension


def _module() -> Any:
    try:
        return importlib.import_module("mlxgen._mlx_extension")
    except ImportError:
        return None
