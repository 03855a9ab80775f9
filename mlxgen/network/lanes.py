"""A pass through the network in parts, which two streams of MLX's CPU backend compute at the same time.

There, a stream is one thread, and only its matrix products use more. Without parts, whatever is between the products
leaves the other cores idle. Metal computes a pass as a whole. (A batch's step is too short to be divided as a whole;
its attention is: see mlxgen.network.cpu_kernels.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlxgen import device

LEAST = 64  # positions of a part: with fewer, reading the weights for each part costs more than it gains


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows, or some positions of the single row, of a pass over L positions of B rows.

    lane: 0 or 1, the stream that computes it; see device.lane.
    """

    B: int
    L: int
    lane: int
    rows: range
    positions: range

    @property
    def is_all(self) -> bool:
        return len(self.rows) == self.B and len(self.positions) == self.L

    def of(self, x: mx.array) -> mx.array:
        """Its share of x [B, L, D], as [rows * positions, D]."""
        share = x if self.is_all else x[cut(self.rows), cut(self.positions)]
        return share.reshape(-1, x.shape[-1])

    def readable(self, keys: mx.array) -> mx.array:
        """What it may read of keys or values [B, H, S, D/H], of which the last L positions are this pass's."""
        return keys if self.is_all else keys[cut(self.rows), :, : keys.shape[2] - self.L + self.positions.stop]

    def of_mask(self, mask: Any) -> Any:
        """Its share of the mask of the pass; "causal" and None are the same for each part."""
        if self.is_all or not isinstance(mask, mx.array):
            return mask
        mask = mask[..., : mask.shape[-1] - self.L + self.positions.stop]
        if mask.shape[-2] > 1:
            mask = mask[..., cut(self.positions), :]
        return mask[cut(self.rows)] if mask.ndim == 4 and mask.shape[0] > 1 else mask


def parts_of(B: int, L: int) -> list[Part]:
    """How to divide a pass over L positions of B rows."""
    if B * L < 2 * LEAST or not device.has_two_lanes():
        return [Part(B, L, 0, range(B), range(L))]
    return halves(B, L)


def halves(B: int, L: int) -> list[Part]:
    """Half of the rows for each lane, or half of the positions of a single row."""
    if B > 1:
        return [Part(B, L, 0, range(B // 2), range(L)), Part(B, L, 1, range(B // 2, B), range(L))]
    return [Part(B, L, 0, range(1), range(L // 2)), Part(B, L, 1, range(1), range(L // 2, L))]


def joined(shares: Sequence[mx.array], parts: Sequence[Part]) -> mx.array:
    """The parts' shares of [B, heads, L, D/H], put together."""
    if len(shares) == 1:
        return shares[0]
    return mx.concatenate(list(shares), axis=0 if len(parts[0].positions) == parts[0].L else 2)


def cut(indices: range) -> slice:
    return slice(indices.start, indices.stop)
