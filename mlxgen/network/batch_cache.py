"""The KV cache of a batch: rows join and leave, and each has a slot and a position of its own.

mlx-lm's batch caches align rows by padding on the left, copy everything when a row joins or leaves, and cannot pin the
first positions of a rotating cache. Here, each row's keys keep the layout of its own cache, and a mask limits each row
to the positions that it has filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mlxgen.network.pair_cache import capacity_for

GROWTH = 64  # positions that the buffers grow by at least: less than a single row's, as there are many rows


class BatchCache:
    """The caches of all layers for n rows, in slots 0 to n - 1. Each step adds one position to every row.

    A row that leaves makes its slot free for the next one that joins; what other slots hold is not touched. Slots that
    are still free when a step begins are closed: the last rows move into them.

    most_rows: how many rows there are at most. max_size, keep: those of the rows' own caches, if they rotate. Pass
    `layers` to the decoder as its cache.
    """

    def __init__(self, n_layer: int, most_rows: int, max_size: int | None = None, keep: int = 0) -> None:
        self.most_rows, self._max_size, self._keep = most_rows, max_size, keep
        self._expected = 0
        self.offsets: list[int] = []  # positions processed, for each row
        self._next: list[int] = []  # index at which each row's next position is written
        self._free: list[int] = []  # slots without a row
        self.layers = [BatchCacheLayer(self) for _ in range(n_layer)]

    def __len__(self) -> int:
        """How many slots there are, free ones included."""
        return len(self.offsets)

    def filled(self, slot: int) -> int:
        """How many positions a slot holds."""
        return self._filled(self.offsets[slot])

    def expect(self, rows: int) -> None:
        """Let the buffers that the next row gets have room for so many new rows."""
        self._expected = len(self) - len(self._free) + rows

    def reserve(self, rows: int) -> list[int]:
        """Slots for rows that are about to join: free ones, then new ones."""
        slots = [self._free.pop() for _ in range(min(rows, len(self._free)))]
        new = range(len(self), len(self) + rows - len(slots))
        self.offsets += [0] * len(new)
        self._next += [0] * len(new)
        return [*slots, *new]

    def join(self, slot: int, caches: Sequence[Any], row: int, offset: int, following: int, to_come: int) -> None:
        """Fill a reserved slot from one row of caches, one per layer.

        offset: positions processed. following: the index of the next position in the row's own layout. to_come: how
        many more there may be; for the next GROWTH of them, room is made now.
        """
        size, later = self._filled(offset), self._filled(offset + min(to_come, GROWTH))
        for layer, cache in zip(self.layers, caches, strict=True):
            layer.put(slot, cache.pair[row : row + 1, :, :size], max(len(self), self._expected), later)
        self.offsets[slot], self._next[slot] = offset, following

    def leave(self, slot: int) -> None:
        """Make a slot free."""
        self._free.append(slot)

    def close_gaps(self) -> list[tuple[int, int]]:
        """Move the last rows into free slots; returns the moves, as (from, to)."""
        moves = []
        for slot in sorted(self._free, reverse=True):
            last = len(self) - 1
            if slot != last:
                for layer in self.layers:
                    layer.move(last, slot, self.filled(last))
                self.offsets[slot], self._next[slot] = self.offsets[last], self._next[last]
                moves.append((last, slot))
            del self.offsets[last], self._next[last]
        self._free.clear()
        return moves

    def drop_buffers(self) -> None:
        """Free the buffers when no row is left: they are lazy arrays, which keep all they were made from."""
        assert not self.offsets
        self.layers = [BatchCacheLayer(self) for _ in self.layers]

    def begin_step(self) -> None:
        """Decide where this step writes each row's position, and which positions each row reads."""
        indices = [self._keep if index == self._max_size else index for index in self._next]
        filled = [self._filled(offset + 1) for offset in self.offsets]
        self.span = max(filled)
        # Slots that no row has are written, too, at their beginning: whoever joins fills them anew.
        rows = 0 if self.layers[0].pair is None else self.layers[0].pair.shape[0]
        self.spare = max(rows - len(self), 0)
        self.index = mx.array([*indices, *[0] * self.spare], mx.uint32)[:, None, None, None]
        self.offset = mx.array(self.offsets)  # [n]
        self.mask = None
        if min(filled) < self.span:
            self.mask = (mx.arange(self.span) < mx.array(filled)[:, None])[:, None, None]  # [n, 1, 1, span]
        self.offsets = [offset + 1 for offset in self.offsets]
        self._next = [index + 1 for index in indices]

    def send_off(self) -> None:
        """Let the device write the buffers now: the next step may come from another thread, which cannot."""
        mx.async_eval([layer.pair for layer in self.layers if layer.pair is not None])

    def _filled(self, offset: int) -> int:
        return offset if self._max_size is None else min(offset, self._max_size)


class BatchCacheLayer:
    """One layer's keys and values of all rows, in one buffer [rows, 2 H, positions, D/H] with spare capacity."""

    def __init__(self, slots: BatchCache) -> None:
        self._slots = slots
        self.pair: mx.array | None = None

    @property
    def offset(self) -> mx.array:
        """Each row's position in this step: int [n]."""
        return self._slots.offset

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> mx.array | None:
        """The mask for one query per row, which reads all positions in its row's slot."""
        return self._slots.mask

    def update_pair(self, pair: mx.array) -> mx.array:
        """Write each row's next position, keys and values [n, 2 H, 1, D/H]; returns [n, 2 H, span, D/H]."""
        slots, n = self._slots, len(self._slots)
        buffer = _with_room(self.pair, pair, n, slots.span, slots.most_rows)
        if slots.spare:
            pair = mx.pad(pair, [(0, slots.spare), (0, 0), (0, 0), (0, 0)])
        self.pair = mx.put_along_axis(buffer, slots.index, pair, axis=2)
        return self.pair[:n, :, : slots.span]

    def put(self, row: int, pair: mx.array, rows: int, positions: int) -> None:
        """Fill a slot from position 0 on with keys and values [1, 2 H, positions, D/H], and make room.

        rows, positions: how many there have to be.
        """
        end = pair.shape[2]
        self.pair = _with_room(self.pair, pair, rows, positions, self._slots.most_rows)
        self.pair[row : row + 1, :, :end] = pair

    def move(self, source: int, target: int, end: int) -> None:
        """Copy the first `end` positions of one slot to another."""
        assert self.pair is not None  # put() made it
        self.pair[target, :, :end] = self.pair[source, :, :end]


def _with_room(buffer: mx.array | None, like: mx.array, rows: int, positions: int, most_rows: int) -> mx.array:
    """The buffer if it has room for that many rows and positions, else a larger one with the same content."""
    _, H, _, width = like.shape
    old_rows, old_positions = (0, 0) if buffer is None else (buffer.shape[0], buffer.shape[2])
    if buffer is not None and rows <= old_rows and positions <= old_positions:
        return buffer
    more_rows = more_positions = 0
    if rows > old_rows:  # doubled, so that joining rows cause few copies
        more_rows = max(rows, min(2 * old_rows, most_rows)) - old_rows
    if positions > old_positions:
        more_positions = capacity_for(max(positions, old_positions * 5 // 4), GROWTH) - old_positions
    if buffer is None:
        return mx.zeros((more_rows, H, more_positions, width), like.dtype)
    return mx.pad(buffer, [(0, more_rows), (0, 0), (0, more_positions), (0, 0)])
