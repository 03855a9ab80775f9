"""The k highest numbers are those of a whole, stable sort."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxgen.sampling.k_highest import BLOCK, k_highest


@pytest.mark.parametrize("size", [5, BLOCK - 1, BLOCK, BLOCK + 1, 3000, 40_003])
@pytest.mark.parametrize("levels", [7, 10**6])  # many equal values, hardly any
def test_they_are_those_of_a_stable_sort(size: int, levels: int) -> None:
    rng = np.random.default_rng(size)
    for k in (1, 4, 5, 12, 64):
        numbers = rng.integers(0, levels, size).astype(np.float32)
        numbers[rng.random(size) < 0.1] = -np.inf
        order = np.argsort(-numbers, kind="stable")[:k]
        values, indices = k_highest(mx.array(numbers), min(k, size))
        assert indices.tolist() == order.tolist()
        assert values.tolist() == numbers[order].tolist()


def test_where_fewer_are_finite_the_indices_still_exist() -> None:
    numbers = np.full(1000, -np.inf, np.float32)
    numbers[[999, 3]] = 1, 2
    values, indices = k_highest(mx.array(numbers), 300)
    assert indices.tolist()[:2] == [3, 999] and values.tolist() == [2, 1] + [-np.inf] * 298
    assert max(indices.tolist()) < 1000
