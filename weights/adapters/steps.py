"""What an adapter does to one parameter: LoRA and DoRA, replaced parameters and rows, and numbers that are added.

LoRA: Hu and others, https://arxiv.org/abs/2106.09685. DoRA: Liu and others, https://arxiv.org/abs/2402.09353.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from mlxgen.weights.sources.checkpoint import LazyTensor


class Step(Protocol):
    """One change of a parameter, float32 [out, in]. Tensors are read when it is applied."""

    @property
    def order(self) -> int:
        """Steps on the same parameter are applied in this order."""

    def apply(self, weight: mx.array) -> mx.array:
        """The changed parameter."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """A parameter that was trained as a whole."""

    tensor: LazyTensor
    transpose: bool = False  # stored as [in, out]
    order: int = 0

    def apply(self, weight: mx.array) -> mx.array:
        new = self.tensor.read().astype(mx.float32)
        return new.T if self.transpose else new


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of an embedding that were trained, of the tokens with these ids."""

    tensor: LazyTensor  # [n, D]
    rows: Sequence[int]
    order: int = 1

    def apply(self, weight: mx.array) -> mx.array:
        changed = mx.array(weight)  # another array, since rows are set in place
        changed[mx.array(list(self.rows))] = self.tensor.read().astype(mx.float32)
        return changed


@dataclass(frozen=True, slots=True)
class LowRank:
    """LoRA: scale * left @ right is added. With a magnitude, DoRA: then each row, or column, is scaled to that norm."""

    left: LazyTensor  # [n, r]
    right: LazyTensor  # [r, m]
    scale: float
    transpose: bool = False  # the product is [in, out]
    magnitude: LazyTensor | None = None  # [out] or, for columns, [in]
    columns: bool = False
    order: int = 2

    def apply(self, weight: mx.array) -> mx.array:
        left, right = (factor.read().astype(mx.float32) for factor in (self.left, self.right))
        if self.transpose:
            left, right = right.T, left.T
        weight = mx.addmm(weight, left, right, alpha=self.scale)
        if self.magnitude is None:
            return weight
        axis = 0 if self.columns else 1
        norms = mx.sqrt(mx.square(weight).sum(axis=axis, keepdims=True))
        return weight * (mx.expand_dims(self.magnitude.read().astype(mx.float32), axis) / norms)


@dataclass(frozen=True, slots=True)
class Addition:
    """A bias of the low-rank layer, which is added to the layer's own."""

    tensor: LazyTensor
    scale: float
    order: int = 2

    def apply(self, weight: mx.array) -> mx.array:
        return weight + self.scale * self.tensor.read().astype(mx.float32)
