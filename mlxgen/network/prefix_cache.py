"""The cache of rows that continue a few common prefixes, such as the answers to multiple-choice questions.

A prefix goes through the network once, however many rows continue it. The rows then go through in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mlxgen.network.cache import KVCache


class PrefixCacheLayer:
    """One layer's keys and values of each row's prefix, [rows, H, span, D/H], of which a row reads its first `offset`.

    It serves one pass: what the pass adds is read by its own positions and not kept.
    """

    def __init__(self, keys: mx.array, values: mx.array, offset: mx.array) -> None:
        self._keys, self._values = keys, values
        self.offset = offset  # int [rows]

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        """The mask for the next N positions: the row's prefix, and the new ones up to each: bool [rows, 1, N, S]."""
        rows, span = self._keys.shape[0], self._keys.shape[2]
        prefix = (mx.arange(span) < self.offset[:, None])[:, None, None]  # [rows, 1, 1, span]
        own = mx.arange(N)[:, None] >= mx.arange(N)
        parts = [mx.broadcast_to(prefix, (rows, 1, N, span)), mx.broadcast_to(own, (rows, 1, N, N))]
        return mx.concatenate(parts, axis=-1)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """The prefix's keys and values, followed by those given."""
        return mx.concatenate([self._keys, keys], axis=2), mx.concatenate([self._values, values], axis=2)


def continue_prefixes(
    caches: Sequence[KVCache], lengths: Sequence[int], owners: Sequence[int]
) -> list[PrefixCacheLayer]:
    """The cache for rows that continue the prefixes in `caches`, one per layer.

    lengths: how many positions each prefix has; shorter ones are padded on the right. owners: each row's prefix.
    """
    rows = mx.array(list(owners))
    offset = mx.array([lengths[owner] for owner in owners])
    layers = []
    for cache in caches:
        assert cache.pair is not None
        keys, values = mx.split(cache.pair[rows, :, : max(lengths)], 2, axis=1)
        layers.append(PrefixCacheLayer(keys, values, offset))
    return layers
