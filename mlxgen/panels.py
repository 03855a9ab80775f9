"""Weights laid out for the CPU's memory: panels of 64 columns, read once from front to back by a one-row product.

A decode step multiplies one row by every weight, so it is as fast as memory is read. The BLAS reads a [in, out]
matrix for one row at about half of that. Cut into panels [out/64, in, 64] and multiplied panel by panel, the same
weight streams through, and two to four rows cost what one does. Products of many rows put the matrix together first.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map_with_path

WIDTH = 64
FEW_ROWS = 32  # up to here the panels win


def to_panels(weight: mx.array) -> mx.array:
    """A weight [out, in] as panels [ceil(out / 64), in, 64], the last one filled up with zeros."""
    n_out, n_in = weight.shape
    padded = mx.pad(weight, [(0, -n_out % WIDTH), (0, 0)])
    return mx.contiguous(padded.reshape(-1, WIDTH, n_in).transpose(0, 2, 1))


def times_panels(x: mx.array, panels: mx.array, n_out: int) -> mx.array:
    """x [..., in] times the weight: [..., out]."""
    count, n_in, _ = panels.shape
    rows = x.size // n_in
    if rows <= FEW_ROWS:
        product = x.reshape(1, rows, n_in) @ panels  # [panels, rows, 64]
        product = product.transpose(1, 0, 2)
    else:
        product = x.reshape(rows, n_in) @ panels.transpose(1, 0, 2).reshape(n_in, count * WIDTH)
    return product.reshape(*x.shape[:-1], count * WIDTH)[..., :n_out]


class PanelLinear(nn.Module):
    """As nn.Linear."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.n_out = linear.weight.shape[0]
        self.panels = to_panels(linear.weight)
        if "bias" in linear:
            self.bias = linear.bias

    def __call__(self, x: mx.array) -> mx.array:
        product = times_panels(x, self.panels, self.n_out)
        return product + self.bias if "bias" in self else product


class PanelEmbedding(nn.Module):
    """As nn.Embedding: rows by token id, and the tied output head."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.n_out = embedding.weight.shape[0]
        self.panels = to_panels(embedding.weight)

    def __call__(self, ids: mx.array) -> mx.array:
        return self.panels[ids // WIDTH, :, ids % WIDTH]  # [..., in]

    def as_linear(self, x: mx.array) -> mx.array:
        return times_panels(x, self.panels, self.n_out)


def use_panels(decoder: nn.Module) -> None:
    """Lay out a decoder's weights as panels, in place and one at a time, so that only one exists twice."""

    def panelled(path: str, module: object) -> object:
        replacement: nn.Module
        if type(module) is nn.Linear:
            replacement = PanelLinear(module)
        elif type(module) is nn.Embedding and path.endswith("wte"):
            replacement = PanelEmbedding(module)
        else:
            return module
        mx.eval(replacement.parameters())
        return replacement

    leaves = tree_map_with_path(panelled, decoder.leaf_modules(), is_leaf=nn.Module.is_module)
    decoder.update_modules(leaves)
