"""A pass in two lanes computes what a pass in one computes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx.utils import tree_flatten

from mlxgen import device
from mlxgen.network import lanes
from mlxgen.network.batch_cache import BatchCache
from mlxgen.network.cache import KVCache, make_cache
from mlxgen.network.decoder import GPT2

from ..support.models import tiny_gpt2

CLOSE = 1e-4


@pytest.fixture(scope="module")
def decoder() -> GPT2:
    return tiny_gpt2(3, n_positions=256).model().decoder


def in_lanes(two: bool, compute: Callable[[], Any]) -> Any:
    """What `compute` returns where even the smallest passes are divided in two, or where none are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "LEAST", 1)
        patch.setattr(device, "has_two_lanes", lambda: two)
        return compute()


def random_ids(seed: int, B: int, L: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).integers(0, 256, (B, L)))


def assert_same_in_both(compute: Callable[[], list[mx.array]]) -> None:
    one, two = (in_lanes(two, compute) for two in (False, True))
    for ours, theirs in zip(one, two, strict=True):
        np.testing.assert_allclose(np.array(ours), np.array(theirs), atol=CLOSE)


@given(B=st.integers(1, 70), L=st.integers(1, 300))
def test_every_position_of_every_row_is_in_one_part(B, L):
    parts = in_lanes(True, lambda: lanes.parts_of(B, L))
    covered = [(row, at) for part in parts for row in part.rows for at in part.positions]
    assert sorted(covered) == [(row, at) for row in range(B) for at in range(L)]
    assert [part.lane for part in parts] == ([0] if B * L == 1 else [0, 1])


def test_a_pass_is_divided_where_each_part_has_enough_positions(monkeypatch):
    monkeypatch.setattr(device, "has_two_lanes", lambda: True)
    sizes = [(1, 127), (1, 128), (2, 63), (2, 64), (127, 1), (128, 1)]
    assert [len(lanes.parts_of(*size)) for size in sizes] == [1, 2, 1, 2, 1, 2]


@given(L=st.integers(2, 40), before=st.integers(0, 30), max_size=st.sampled_from([None, 8, 24, 100]))
def test_chunks_of_one_text(decoder, L, before, max_size):
    def compute() -> list[mx.array]:
        cache = make_cache(len(decoder.layers), max_size, keep=2 if max_size else 0)
        if before:
            decoder.hidden(random_ids(1, 1, before), cache)
        hidden = decoder.hidden(random_ids(2, 1, L), cache)
        return [hidden, *(array for layer in cache for array in layer.state[:2])]

    assert_same_in_both(compute)


@given(B=st.integers(2, 7), L=st.integers(1, 20), before=st.integers(0, 9))
def test_several_texts(decoder, B, L, before):
    def compute() -> list[mx.array]:
        cache = [KVCache() for _ in decoder.layers]
        if before:
            decoder.hidden(random_ids(1, B, before), cache)
        return [decoder.hidden(random_ids(2, B, L), cache), *(array for layer in cache for array in layer.state[:2])]

    assert_same_in_both(compute)


@given(lengths=st.lists(st.integers(1, 20), min_size=2, max_size=6))
def test_steps_of_rows_that_have_read_different_numbers_of_positions(decoder, lengths):
    def compute() -> list[mx.array]:
        rows = BatchCache(len(decoder.layers), len(lengths))
        for length, slot in zip(lengths, rows.reserve(len(lengths)), strict=True):
            own = [KVCache() for _ in decoder.layers]
            decoder.hidden(random_ids(length, 1, length), own)
            rows.join(slot, own, 0, length, length, 3)
        out = []
        for step in range(3):
            rows.begin_step()
            out.append(decoder.hidden(random_ids(step, len(lengths), 1), rows.layers))
        return out

    assert_same_in_both(compute)


def test_without_a_cache_and_its_gradients(decoder):
    ids = random_ids(5, 3, 12)

    def loss(model: GPT2) -> mx.array:
        return nn.losses.cross_entropy(model(ids[:, :-1]), ids[:, 1:]).mean()

    def compute() -> list[mx.array]:
        value, gradients = nn.value_and_grad(decoder, loss)(decoder)
        return [value, *(array for _, array in tree_flatten(gradients))]

    assert_same_in_both(compute)


def test_another_thread_has_a_second_lane_of_its_own(decoder):
    found: list[mx.array] = []

    def compute() -> None:
        hidden = decoder.hidden(random_ids(6, 1, 30))
        mx.eval(hidden)
        found.append(hidden)

    def in_both_threads() -> None:
        compute()
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()

    in_lanes(True, in_both_threads)
    here, there = found
    np.testing.assert_array_equal(np.array(here), np.array(there))


def test_a_gpu_computes_a_pass_as_a_whole(monkeypatch):
    monkeypatch.setattr(device, "on_cpu", lambda: False)
    assert len(lanes.parts_of(32, 100)) == 1
