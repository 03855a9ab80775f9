"""Rows that continue common prefixes get the hidden states of one pass over each whole row."""

import mlx.core as mx
import numpy as np
import pytest

import mlxgen
from mlxgen.network.cache import KVCache
from mlxgen.network.prefix_cache import continue_prefixes

PREFIXES = [[5, 6, 7, 8, 9, 10, 11], [12], [3, 1, 4]]
RESTS = [(0, [20, 21, 22]), (0, [23]), (1, [24, 25]), (2, [26, 27, 28]), (2, [29, 30])]  # (prefix, the row's own)


def padded(rows: list[list[int]]) -> mx.array:
    longest = max(map(len, rows))
    return mx.array([row + [0] * (longest - len(row)) for row in rows])


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_rows_read_their_own_prefix_and_no_padding(build_model, dtype: mx.Dtype) -> None:
    model: mlxgen.Model = build_model(seed=3)
    decoder = model.decoder
    decoder.set_dtype(dtype)
    caches = [KVCache() for _ in decoder.layers]
    decoder.hidden(padded(PREFIXES), caches)
    cache = continue_prefixes(caches, list(map(len, PREFIXES)), [owner for owner, _ in RESTS])
    hidden = decoder.hidden(padded([rest for _, rest in RESTS]), cache)
    for row, (owner, rest) in zip(hidden, RESTS, strict=True):
        whole = decoder.hidden(mx.array([PREFIXES[owner] + rest]))[0, len(PREFIXES[owner]) :]
        tolerance = 1e-4 if dtype == mx.float32 else 0.1
        np.testing.assert_allclose(np.array(row[: len(rest)]), np.array(whole), atol=tolerance)
