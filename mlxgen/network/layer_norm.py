"""A LayerNorm that says when its sums overflow.

Where a number is so large that its square overflows, the variance is infinite and LayerNorm quietly gives its bias.
Numbers of that size come from damaged weights alone. They stay in the residual stream, so it is enough to look in two
places: the last block's first LayerNorm, whose keys every later position reads, and the final one.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from mlxgen import cpu_operations


class LayerNorm(nn.LayerNorm):
    """nn.LayerNorm, in one pass on the CPU backend: x [..., D] -> [..., D]."""

    def __call__(self, x: mx.array) -> mx.array:
        if cpu_operations.available_for(x, self.weight, self.bias):
            return cpu_operations.layer_norm(x, self.weight, self.bias, self.eps)
        y: mx.array = super().__call__(x)
        return y


class WatchfulLayerNorm(LayerNorm):
    """LayerNorm, but NaN for rows whose squares overflow."""

    def __call__(self, x: mx.array) -> mx.array:
        y = super().__call__(x)
        if cpu_operations.available_for(x, self.weight, self.bias):  # it gives NaN itself
            return y
        if x.dtype == mx.float16:  # its squares are summed in float32, where they fit
            return y
        return y + 0 * mx.sum(mx.square(x), axis=-1, keepdims=True)  # infinity times 0 is NaN
