"""The KV caches: the keys and values of the positions that a layer has processed.

Both classes follow mlx-lm's cache protocol (update_and_fetch, make_mask, offset, state, trim, ...), so that mlx-lm's
generate, prompt-cache files and batching work with them. Keys and values are [B, H, positions, D/H].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import mlx.core as mx

from mlxgen.errors import OptionError, check_whole

GROWTH = 256  # positions added when a buffer is full: few reallocations, little unused memory


class Cache(Protocol):
    """What the decoder and the session need from one layer's cache."""

    offset: int

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]: ...
    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Any: ...
    def size(self) -> int: ...
    def trim(self, n: int) -> int: ...
    @property
    def trimmable(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


class Slot(NamedTuple):
    """Where the next position is written: the buffers, the index in them, and how many entries are then filled."""

    keys: mx.array
    values: mx.array
    at: int
    filled: int


def make_cache(n_layer: int, max_size: int | None = None, keep: int = 0) -> list[Cache]:
    """One empty cache per layer: a rotating one if `max_size` is given, otherwise one that grows with the context."""
    if max_size is None:
        return [KVCache() for _ in range(n_layer)]
    return [RotatingKVCache(max_size, keep) for _ in range(n_layer)]


class _Buffers:
    """The buffers that both caches have: keys and values, None while the cache is empty."""

    keys: mx.array | None = None
    values: mx.array | None = None

    def empty(self) -> bool:
        return self.keys is None

    @property
    def meta_state(self) -> str:
        return ""

    @property
    def nbytes(self) -> int:
        return 0 if self.keys is None or self.values is None else self.keys.nbytes + self.values.nbytes


class KVCache(_Buffers):
    """A cache of all positions so far. Its buffers grow by GROWTH positions and are written in place."""

    def __init__(self) -> None:
        self.offset = 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add the keys and values of the next positions; returns those of all positions so far."""
        start, self.offset = self.offset, self.offset + keys.shape[2]
        capacity = _capacity(self.offset)
        self.keys = _with_capacity(self.keys, keys, start, capacity)
        self.values = _with_capacity(self.values, values, start, capacity)
        self.keys[..., start : self.offset, :] = keys
        self.values[..., start : self.offset, :] = values
        return self.keys[..., : self.offset, :], self.values[..., : self.offset, :]

    def repeat(self, rows: int) -> None:
        """Give each of several rows the positions of the one row that is here."""
        assert self.keys is not None and self.values is not None
        self.keys, self.values = (mx.repeat(kept, rows, axis=0) for kept in (self.keys, self.values))

    def reserve(self) -> Slot:
        """The slot of the next position, for a cache that is not empty. Write to it, then call `commit`."""
        assert self.keys is not None and self.values is not None
        capacity = _capacity(self.offset + 1)
        keys, values = (_with_capacity(kept, kept, self.offset, capacity) for kept in (self.keys, self.values))
        return Slot(keys, values, self.offset, self.offset + 1)

    def commit(self, keys: mx.array, values: mx.array, index: int) -> None:
        """Take over the buffers in which the reserved slot was written."""
        self.keys, self.values, self.offset = keys, values, index + 1

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> mx.array | str | None:
        """The mask for the next N positions: none for one, "causal" for more, or bool [N, offset + N]."""
        if return_array or window_size is not None:
            window = self.offset + N if window_size is None else window_size
            return _allowed(mx.arange(self.offset + N), self.offset, N, 0, window)
        return "causal" if N > 1 else None

    def size(self) -> int:
        return self.offset

    def is_trimmable(self) -> bool:
        return True

    @property
    def trimmable(self) -> int:
        """How many of the newest positions `trim` can remove."""
        return self.offset

    def trim(self, n: int) -> int:
        """Remove the newest n positions, or as many as possible; returns how many were removed."""
        n = min(n, self.trimmable)
        self.offset -= n
        return n

    @property
    def state(self) -> tuple[mx.array | None, mx.array | None, int]:
        return self.keys, self.values, self.offset

    @state.setter
    def state(self, state: tuple[mx.array | None, mx.array | None, int]) -> None:
        self.keys, self.values, self.offset = state

    @staticmethod
    def merge(caches: Sequence[KVCache]) -> Any:
        """Merge the caches of several rows into one, for mlx-lm's BatchGenerator."""
        from mlx_lm.models.cache import BatchKVCache

        return BatchKVCache.merge(caches)


class RotatingKVCache(_Buffers):
    """A cache of at most `max_size` positions: the first `keep` are pinned, the rest are the newest.

    A query at position i reads positions j <= i with j < keep or j > i - (max_size - keep). With max_size >= the
    context this is full attention. A single position overwrites the oldest unpinned one, as in a ring buffer. For a
    chunk, the positions are put in order first, because each of its queries reads a different window.

    slack: how many positions beyond max_size may remain after a chunk, until the next write, so that `trim` can remove
    that many of the chunk's positions. Queries do not read them.
    """

    slack = 0

    def __init__(self, max_size: int, keep: int = 0) -> None:
        check_whole("keep", keep, 0)
        check_whole("max_kv_size", max_size, 1)
        if max_size <= keep:
            raise OptionError(f"max_kv_size must be larger than keep ({keep}), not {max_size}")
        self.max_size, self.keep = max_size, keep
        self.offset = 0  # positions processed, which is also the next position
        self._next = 0  # index at which the next position is written; max_size stands for keep
        self._rewound = False  # the entry at _next is a trimmed position: no more can be trimmed

    @property
    def window(self) -> int:
        """How many of the newest unpinned positions a query reads, its own included."""
        return self.max_size - self.keep

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add the next positions; returns the keys and values that they may read (make_mask says which reads which)."""
        if keys.shape[2] == 1:
            return self._write_one(keys, values)
        return self._write_chunk(keys, values)

    def _write_one(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        if self.keys is None or self.values is None:
            self.keys, self.values = keys[..., :0, :], values[..., :0, :]
        slot = self.reserve()
        self.keys, self.values = slot.keys, slot.values
        self.keys[..., slot.at : slot.at + 1, :] = keys
        self.values[..., slot.at : slot.at + 1, :] = values
        self.commit(self.keys, self.values, slot.at)
        return self.keys[..., : slot.filled, :], self.values[..., : slot.filled, :]

    def reserve(self) -> Slot:
        """The slot of the next position, for a cache that is not empty. Write to it, then call `commit`."""
        self.keys, self.values, self._next = self._without_slack()
        assert self.keys is not None and self.values is not None
        index = self.keep if self._next == self.max_size else self._next
        capacity = min(self.max_size, _capacity(index + 1))
        keys, values = (_with_capacity(kept, kept, self._filled, capacity) for kept in (self.keys, self.values))
        return Slot(keys, values, index, min(self.offset + 1, self.max_size))

    def commit(self, keys: mx.array, values: mx.array, index: int) -> None:
        """Take over the buffers in which the reserved slot was written."""
        self.keys, self.values = keys, values
        self.offset, self._next, self._rewound = self.offset + 1, index + 1, False

    def _write_chunk(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        every_key = mx.concatenate([*self._in_order(self.keys), keys], axis=2)
        every_value = mx.concatenate([*self._in_order(self.values), values], axis=2)
        self.offset += keys.shape[2]
        self.keys, self.values = self._newest(every_key, self.slack), self._newest(every_value, self.slack)
        self._next, self._rewound = self.keys.shape[2], False
        return every_key, every_value

    @property
    def _filled(self) -> int:
        return min(self.offset, self.max_size)

    def _in_order(self, kept: mx.array | None) -> list[mx.array]:
        """What the next position may read, oldest first: pinned positions and the newest window - 1 of the others."""
        if kept is None or self.offset == 0:
            return []
        if self.offset < self.max_size:
            return [kept[..., : self.offset, :]]
        if self._next > self.max_size:  # a chunk came last: still in order, with slack
            return [kept[..., : self.keep, :], kept[..., self._next - self.window + 1 : self._next, :]]
        at = self.keep if self._next == self.max_size else self._next  # the oldest, which is no longer read
        return [kept[..., : self.keep, :], kept[..., at + 1 : self.max_size, :], kept[..., self.keep : at, :]]

    def _newest(self, every: mx.array, slack: int = 0) -> mx.array:
        """The pinned and the newest of positions in order, max_size + slack at most."""
        if every.shape[2] <= self.max_size + slack:
            return every
        return mx.concatenate([every[..., : self.keep, :], every[..., -self.window - slack :, :]], axis=2)

    def _without_slack(self) -> tuple[mx.array | None, mx.array | None, int]:
        """Keys and values cut to max_size positions, and the index of the next position in them."""
        if self._next <= self.max_size or self.keys is None or self.values is None:
            return self.keys, self.values, self._next
        return self._newest(self.keys), self._newest(self.values), self.max_size

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> mx.array | str | None:
        """The mask for the next N positions over what update_and_fetch returns for them.

        None for one position, which reads everything returned; "causal" while no position is dropped; else bool [N, S].
        """
        if N == 1 and not return_array:
            return None
        if self.offset + N <= self.max_size and not return_array:
            return "causal"
        others = min(max(self.offset - self.keep, 0), self.window - 1)
        pins = mx.arange(min(self.keep, self.offset))
        positions = mx.concatenate([pins, mx.arange(self.offset - others, self.offset + N)])
        return _allowed(positions, self.offset, N, self.keep, self.window)

    def size(self) -> int:
        return self._filled

    def is_trimmable(self) -> bool:
        return self.offset <= self.max_size and not self._rewound

    @property
    def trimmable(self) -> int:
        """How many of the newest positions `trim` can remove.

        All of them until a position has been dropped. After that, the newest one (its entry is the next to be
        overwritten) and the slack.
        """
        if self._rewound:
            return 0
        if self.offset <= max(self.max_size, self._next):  # nothing was dropped
            return self.offset
        return 1 + max(self._next - self.max_size, 0)

    def trim(self, n: int) -> int:
        """Remove the newest n positions, `trimmable` at most; returns how many were removed."""
        n = min(n, self.trimmable)
        if self._next > self.max_size and self.keys is not None and self.values is not None:
            end = max(self._next - n, self.max_size)
            dropped = self.offset > self._next
            self.keys, self.values = self.keys[..., :end, :], self.values[..., :end, :]
            self._rewound = dropped and self._next - n < self.max_size
        else:
            self._rewound = self._rewound or (n > 0 and self.offset > self.max_size)
        self.offset -= n
        self._next -= n
        return n

    @property
    def state(self) -> tuple[mx.array | None, mx.array | None, int, int, int, int]:
        keys, values, following = self._without_slack()
        return keys, values, self.offset, self.keep, self.max_size, following

    @state.setter
    def state(self, state: tuple[mx.array | None, mx.array | None, int, int, int, int]) -> None:
        self.keys, self.values, self.offset, self.keep, self.max_size, self._next = state
        # In the middle of the ring, the entry at _next may be a trimmed position; the state does not say, so assume it.
        self._rewound = self.offset >= self.max_size and self._next != self.max_size
        if self.keys is not None and self.values is not None and self.keys.shape[2] > self.max_size:
            # mlx-lm keeps a whole chunk, in order, until the next write
            self.keys, self.values = (self._newest(kept[..., : self._next, :]) for kept in (self.keys, self.values))
            self._next, self._rewound = self.keys.shape[2], False


def _allowed(positions: mx.array, offset: int, N: int, keep: int, window: int) -> mx.array:
    """The mask of which key `positions` [S] each of the N queries from `offset` on may read: bool [N, S]."""
    queries = mx.arange(offset, offset + N)[:, None]
    return (positions <= queries) & ((positions < keep) | (positions > queries - window))


def _capacity(positions: int) -> int:
    return -(-positions // GROWTH) * GROWTH


def _with_capacity(buffer: mx.array | None, new: mx.array, used: int, capacity: int) -> mx.array:
    """The buffer if it has room for `capacity` positions, else a longer one with the same first `used` positions."""
    if buffer is not None and buffer.shape[2] >= capacity:
        return buffer
    B, H, _, width = new.shape
    kept = [] if buffer is None else [buffer[..., :used, :]]
    empty = mx.zeros((B, H, capacity - (used if kept else 0), width), new.dtype)
    return mx.concatenate([*kept, empty], axis=2)
