"""What both kinds of KV cache are built on: one growing buffer for keys and values.

The pair of a layer's keys and values is [B, 2 H, positions, D/H]: the keys of all heads, then the values of all heads.
The decoder gets them side by side, and so writes both at once.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

GROWTH = 256  # positions added when a buffer is full: few reallocations, little unused memory


class Slot(NamedTuple):
    """Where the next position is written: the buffer, the index in it, and how many entries are then filled."""

    pair: mx.array
    at: int
    filled: int


class PairCache:
    """What both caches have: the buffer of keys and values, None while the cache is empty."""

    pair: mx.array | None = None

    @property
    def keys(self) -> mx.array | None:
        return None if self.pair is None else split_pair(self.pair)[0]

    @property
    def values(self) -> mx.array | None:
        return None if self.pair is None else split_pair(self.pair)[1]

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add the keys and values of the next positions; returns those that the positions may read."""
        return split_pair(self.update_pair(_joined(keys, values)))

    def update_pair(self, pair: mx.array) -> mx.array:
        """The same for keys and values as one array [B, 2 H, positions, D/H]."""
        raise NotImplementedError

    def empty(self) -> bool:
        return self.pair is None

    @property
    def meta_state(self) -> str:
        return ""

    @property
    def nbytes(self) -> int:
        return 0 if self.pair is None else self.pair.nbytes


def split_pair(pair: mx.array) -> tuple[mx.array, mx.array]:
    """Keys and values, as views of the pair."""
    keys, values = mx.split(pair, 2, axis=1)
    return keys, values


def _joined(keys: mx.array, values: mx.array) -> mx.array:
    return mx.concatenate([keys, values], axis=1)


def joined_or_none(keys: mx.array | None, values: mx.array | None) -> mx.array | None:
    return None if keys is None or values is None else _joined(keys, values)


def capacity_for(positions: int, growth: int = GROWTH) -> int:
    return -(-positions // growth) * growth


def with_capacity(buffer: mx.array | None, new: mx.array, used: int, capacity: int) -> mx.array:
    """The buffer if it has room for `capacity` positions, else a longer one with the same first `used` positions."""
    if buffer is not None and buffer.shape[2] >= capacity:
        return buffer
    B, H, _, width = new.shape
    kept = [] if buffer is None else [buffer[..., :used, :]]
    empty = mx.zeros((B, H, capacity - (used if kept else 0), width), new.dtype)
    return mx.concatenate([*kept, empty], axis=2)
