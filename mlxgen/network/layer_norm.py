"""A LayerNorm that says when its sums overflow.

Where a number is so large that its square overflows, the variance is infinite and LayerNorm quietly gives its bias.
Numbers of that size come from damaged weights alone. They stay in the residual stream, so it is enough to look in two
places: the last block's first LayerNorm, whose keys every later position reads, and the final one.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn


class WatchfulLayerNorm(nn.LayerNorm):
    """nn.LayerNorm, but NaN for rows whose squares overflow: x [..., D] -> [..., D]."""

    def __call__(self, x: mx.array) -> mx.array:
        y: mx.array = super().__call__(x)
        if x.dtype == mx.float16:  # its squares are summed in float32, where they fit
            return y
        return y + 0 * mx.sum(mx.square(x), axis=-1, keepdims=True)  # infinity times 0 is NaN
