"""The KV cache of many rows that come and go: a slot for each, at a position of its own.

mlx-lm's batch caches push rows together by padding on the left, copy everything when one comes or goes, and cannot pin
the first positions of a rotating cache. Here a row's keys stay where its own cache laid them out, and the mask says how
far each row reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mlxgen.network.cache import GROWTH


class BatchCache:
    """Rows 0 to n - 1 of every layer's buffers are in use; each takes one position a step.

    max_size, keep: as of the rows' own caches, where those rotate. The decoder gets `layers` as its cache.
    """

    def __init__(self, n_layer: int, max_size: int | None = None, keep: int = 0) -> None:
        self._max_size, self._keep = max_size, keep
        self.offsets: list[int] = []  # positions processed, for each row
        self._next: list[int] = []  # where each row's next position is written
        self.layers = [BatchCacheLayer(self) for _ in range(n_layer)]

    def __len__(self) -> int:
        return len(self.offsets)

    def filled(self, row: int) -> int:
        """Positions that a row's slot holds."""
        return self._held(self.offsets[row])

    def join(self, caches: Sequence[Any]) -> None:
        """Take over one row's caches, one a layer (mlxgen.cache's), as the last row."""
        for layer, cache in zip(self.layers, caches, strict=True):
            layer.put(len(self), cache.keys[..., : cache.size(), :], cache.values[..., : cache.size(), :])
        self.offsets.append(caches[0].offset)
        self._next.append(caches[0].state[-1])  # for either kind of cache the place of the next position

    def leave(self, row: int) -> None:
        """Drop a row; the last one takes its place."""
        last = len(self) - 1
        if row != last:
            for layer in self.layers:
                layer.move(last, row, self.filled(last))
            self.offsets[row], self._next[row] = self.offsets[last], self._next[last]
        del self.offsets[last], self._next[last]

    def begin_step(self) -> None:
        """Fix where this step's position of each row is written, and what each row then reads."""
        places = [self._keep if place == self._max_size else place for place in self._next]
        reach = [self._held(offset + 1) for offset in self.offsets]
        self.span = max(reach)
        self.rows, self.places = mx.arange(len(self)), mx.array(places)  # [n]
        self.offset = mx.array(self.offsets)  # [n]
        self.mask = None
        if min(reach) < self.span:
            self.mask = (mx.arange(self.span) < mx.array(reach)[:, None])[:, None, None]  # [n, 1, 1, span]
        self.offsets = [offset + 1 for offset in self.offsets]
        self._next = [place + 1 for place in places]

    def _held(self, offset: int) -> int:
        return offset if self._max_size is None else min(offset, self._max_size)


class BatchCacheLayer:
    """One layer's keys and values of all rows: buffers [rows, H, positions, D/H] with room to spare."""

    def __init__(self, slots: BatchCache) -> None:
        self._slots = slots
        self._keys: mx.array | None = None
        self._values: mx.array | None = None

    @property
    def offset(self) -> mx.array:
        """Each row's position in this step: int [n]."""
        return self._slots.offset

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> mx.array | None:
        """What each row's one query may read: all positions that its own slot holds."""
        return self._slots.mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write each row's next position, keys and values [n, H, 1, D/H]; returns [n, H, span, D/H] of both."""
        slots, n = self._slots, len(self._slots)
        self._keys = _room(self._keys, keys, n, slots.span)
        self._values = _room(self._values, values, n, slots.span)
        self._keys[slots.rows, :, slots.places] = keys[:, :, 0]
        self._values[slots.rows, :, slots.places] = values[:, :, 0]
        return self._keys[:n, :, : slots.span], self._values[:n, :, : slots.span]

    def put(self, row: int, keys: mx.array, values: mx.array) -> None:
        """Fill a slot from position 0 on: keys and values [1, H, positions, D/H]."""
        end = keys.shape[2]
        self._keys = _room(self._keys, keys, row + 1, end)
        self._values = _room(self._values, values, row + 1, end)
        self._keys[row : row + 1, :, :end] = keys
        self._values[row : row + 1, :, :end] = values

    def move(self, source: int, target: int, end: int) -> None:
        assert self._keys is not None and self._values is not None  # a row that moves was put
        self._keys[target, :, :end] = self._keys[source, :, :end]
        self._values[target, :, :end] = self._values[source, :, :end]


def _room(buffer: mx.array | None, like: mx.array, rows: int, positions: int) -> mx.array:
    """The buffer, or a larger one with the same content, for that many rows and positions."""
    _, H, _, width = like.shape
    old_rows, old_positions = (0, 0) if buffer is None else (buffer.shape[0], buffer.shape[2])
    if buffer is not None and rows <= old_rows and positions <= old_positions:
        return buffer
    rows = old_rows if rows <= old_rows else max(rows, 2 * old_rows)  # doubled: few copies while rows come in
    positions = max(old_positions, -(-positions // GROWTH) * GROWTH)
    if buffer is None:
        return mx.zeros((rows, H, positions, width), like.dtype)
    return mx.pad(buffer, [(0, rows - old_rows), (0, 0), (0, positions - old_positions), (0, 0)])
