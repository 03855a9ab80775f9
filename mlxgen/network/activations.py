"""The activation functions of the MLP. config.ACTIVATIONS maps their published names to them."""

from __future__ import annotations

import math
from collections.abc import Callable

import mlx.core as mx

from mlxgen import cpu_operations, device
from mlxgen.network.config import ACTIVATIONS
from mlxgen.network.cpu_kernels import gate

Activation = Callable[[mx.array], mx.array]


def gelu_tanh(x: mx.array) -> mx.array:
    """GELU, tanh approximation (Hendrycks and Gimpel, 2016), as in GPT-2: x/2 * (1 + tanh(y)) = x * sigmoid(2y)."""
    return gate(x, 1.5957691216057308, 0.07135481282747213)


def gelu_erf(x: mx.array) -> mx.array:
    """GELU, exact: x times the normal distribution's cumulative probability, computed with the error function."""
    if cpu_operations.available_for(x):
        return cpu_operations.gelu(x)
    return x * (1 + mx.erf(x * math.sqrt(0.5))) * 0.5


def quick_gelu(x: mx.array) -> mx.array:
    return gate(x, 1.702)


def relu(x: mx.array) -> mx.array:
    return mx.maximum(x, 0)


def silu(x: mx.array) -> mx.array:
    return gate(x, 1.0)


def tanh(x: mx.array) -> mx.array:
    return mx.tanh(x)


FUNCTIONS: dict[str, Activation] = {f.__name__: f for f in (gelu_tanh, gelu_erf, quick_gelu, relu, silu, tanh)}


def activation(name: str) -> Activation:
    """The activation function that a config.json calls ``name``."""
    return device.fused(FUNCTIONS[ACTIVATIONS[name]])
