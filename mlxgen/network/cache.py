"""The KV caches: the keys and values of the positions that a layer has processed.

Both classes follow mlx-lm's cache protocol (update_and_fetch, make_mask, offset, state, trim, ...), so that mlx-lm's
generate, prompt-cache files and batching work with them. Keys and values are [B, H, positions, D/H], and one buffer
holds both (see mlxgen.network.pair_cache).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx

from mlxgen.errors import OptionError, check_whole
from mlxgen.network.pair_cache import GROWTH, PairCache, Slot, capacity_for, joined_or_none, split_pair, with_capacity


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


def make_cache(n_layer: int, max_size: int | None = None, keep: int = 0) -> list[Cache]:
    """One empty cache per layer: a rotating one if `max_size` is given, otherwise one that grows with the context."""
    if max_size is None:
        return [KVCache() for _ in range(n_layer)]
    return [RotatingKVCache(max_size, keep) for _ in range(n_layer)]


class KVCache(PairCache):
    """A cache of all positions so far. Its buffer grows by `growth` positions and is written in place."""

    def __init__(self, growth: int = GROWTH) -> None:
        self.offset = 0
        self._growth = growth

    def update_pair(self, pair: mx.array) -> mx.array:
        """Add the keys and values of the next positions; returns those of all positions so far."""
        start, self.offset = self.offset, self.offset + pair.shape[2]
        self.pair = with_capacity(self.pair, pair, start, capacity_for(self.offset, self._growth))
        self.pair[..., start : self.offset, :] = pair
        return self.pair[..., : self.offset, :]

    def repeat(self, rows: int) -> None:
        """Give each of several rows the positions of the one row that is here."""
        assert self.pair is not None
        self.pair = mx.repeat(self.pair, rows, axis=0)

    def reserve(self) -> Slot:
        """The slot of the next position, for a cache that is not empty. Write to it, then call `commit`."""
        assert self.pair is not None
        buffer = with_capacity(self.pair, self.pair, self.offset, capacity_for(self.offset + 1, self._growth))
        return Slot(buffer, self.offset, self.offset + 1)

    def commit(self, pair: mx.array, index: int) -> None:
        """Take over the buffer in which the reserved slot was written."""
        self.pair, self.offset = pair, index + 1

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
        self.pair, self.offset = joined_or_none(*state[:2]), state[2]

    @staticmethod
    def merge(caches: Sequence[KVCache]) -> Any:
        """Merge the caches of several rows into one, for mlx-lm's BatchGenerator."""
        from mlx_lm.models.cache import BatchKVCache

        return BatchKVCache.merge(caches)


class RotatingKVCache(PairCache):
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

    def update_pair(self, pair: mx.array) -> mx.array:
        """Add the next positions; returns the keys and values that they may read (make_mask says which reads which)."""
        return self._write_one(pair) if pair.shape[2] == 1 else self._write_chunk(pair)

    def _write_one(self, pair: mx.array) -> mx.array:
        if self.pair is None:
            self.pair = pair[..., :0, :]
        slot = self.reserve()
        self.pair = slot.pair
        self.pair[..., slot.at : slot.at + 1, :] = pair
        self.commit(self.pair, slot.at)
        return self.pair[..., : slot.filled, :]

    def reserve(self) -> Slot:
        """The slot of the next position, for a cache that is not empty. Write to it, then call `commit`."""
        self.pair, self._next = self._without_slack()
        assert self.pair is not None
        index = self.keep if self._next == self.max_size else self._next
        buffer = with_capacity(self.pair, self.pair, self._filled, min(self.max_size, capacity_for(index + 1)))
        return Slot(buffer, index, min(self.offset + 1, self.max_size))

    def commit(self, pair: mx.array, index: int) -> None:
        """Take over the buffer in which the reserved slot was written."""
        self.pair = pair
        self.offset, self._next, self._rewound = self.offset + 1, index + 1, False

    def _write_chunk(self, pair: mx.array) -> mx.array:
        every = mx.concatenate([*self._in_order(), pair], axis=2)
        self.offset += pair.shape[2]
        self.pair = self._newest(every, self.slack)
        self._next, self._rewound = self.pair.shape[2], False
        return every

    @property
    def _filled(self) -> int:
        return min(self.offset, self.max_size)

    def _in_order(self) -> list[mx.array]:
        """What the next position may read, oldest first: pinned positions and the newest window - 1 of the others."""
        kept = self.pair
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

    def _without_slack(self) -> tuple[mx.array | None, int]:
        """The pair cut to max_size positions, and the index of the next position in it."""
        if self._next <= self.max_size or self.pair is None:
            return self.pair, self._next
        return self._newest(self.pair), self.max_size

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
        if self._next > self.max_size and self.pair is not None:
            end = max(self._next - n, self.max_size)
            dropped = self.offset > self._next
            self.pair = self.pair[..., :end, :]
            self._rewound = dropped and self._next - n < self.max_size
        else:
            self._rewound = self._rewound or (n > 0 and self.offset > self.max_size)
        self.offset -= n
        self._next -= n
        return n

    @property
    def state(self) -> tuple[mx.array | None, mx.array | None, int, int, int, int]:
        pair, following = self._without_slack()
        keys, values = (None, None) if pair is None else split_pair(pair)
        return keys, values, self.offset, self.keep, self.max_size, following

    @state.setter
    def state(self, state: tuple[mx.array | None, mx.array | None, int, int, int, int]) -> None:
        keys, values, self.offset, self.keep, self.max_size, self._next = state
        self.pair = joined_or_none(keys, values)
        # In the middle of the ring, the entry at _next may be a trimmed position; the state does not say, so assume it.
        self._rewound = self.offset >= self.max_size and self._next != self.max_size
        if self.pair is not None and self.pair.shape[2] > self.max_size:
            # mlx-lm keeps a whole chunk, in order, until the next write
            self.pair = self._newest(self.pair[..., : self._next, :])
            self._next, self._rewound = self.pair.shape[2], False


def _allowed(positions: mx.array, offset: int, N: int, keep: int, window: int) -> mx.array:
    """The mask of which key `positions` [S] each of the N queries from `offset` on may read: bool [N, S]."""
    queries = mx.arange(offset, offset + N)[:, None]
    return (positions <= queries) & ((positions < keep) | (positions > queries - window))
