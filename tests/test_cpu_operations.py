"""The compiled operations of the CPU backend against NumPy in float64, and what makes them operations of MLX."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxgen import cpu_operations, device
from mlxgen.network.cpu_kernels import attention

from .support import oracles
from .support.processes import fresh

pytestmark = pytest.mark.skipif(
    not cpu_operations.available_for(),
    reason="mlxgen was installed without a C++ compiler, or is not on Linux, or on a GPU",
)

WIDTHS = st.sampled_from([1, 3, 15, 16, 17, 48, 100, 1023, 1025])
LEADING = st.sampled_from([(), (1,), (5,), (2, 3), (2, 1, 4)])
SHARP = st.sampled_from([0.1, 1.0, 30.0])
SEEDS = st.integers(0, 1000)


def numbers(seed: int, shape: tuple[int, ...], sharp: float = 1.0) -> np.ndarray:
    return (sharp * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def normal_cumulative(x: np.ndarray) -> np.ndarray:
    import torch

    return torch.special.ndtr(torch.tensor(x, dtype=torch.float64)).numpy()


def written_layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * weight + bias


def log_total(x: np.ndarray) -> np.ndarray:
    highest = x.max(-1, keepdims=True)
    return highest + np.log(np.exp(x - highest).sum(-1, keepdims=True))


# name: the operation, what it computes, and how far they may differ for numbers of about one
ROWS: dict[str, tuple[Callable[[mx.array], mx.array], Callable[[np.ndarray], np.ndarray], float]] = {
    "gate": (
        lambda x: cpu_operations.gate(x, 1.6, 0.07),
        lambda x: x * oracles.sigmoid(1.6 * x + 0.07 * x**3),
        3e-7,
    ),
    "gate without a cube": (lambda x: cpu_operations.gate(x, 1, 0), lambda x: x * oracles.sigmoid(x), 3e-7),
    "gelu": (cpu_operations.gelu, lambda x: x * normal_cumulative(x), 3e-7),
    "exponentials": (cpu_operations.exponentials, lambda x: np.exp(x - x.max(-1, keepdims=True)), 1e-6),
    "log_total": (cpu_operations.log_total, log_total, 1e-6),
}


@pytest.mark.parametrize("name", ROWS)
@given(width=WIDTHS, leading=LEADING, sharp=SHARP, seed=SEEDS)
def test_a_function_of_rows_is_that_written_out(name, width, leading, sharp, seed):
    operation, written, error = ROWS[name]
    x = numbers(seed, (*leading, width), sharp)
    got = np.array(operation(mx.array(x)))
    expected = written(x.astype(np.float64))
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=error * max(1, sharp))


@given(width=WIDTHS, leading=LEADING, sharp=SHARP, seed=SEEDS)
def test_layer_norm_is_that_written_out(width, leading, sharp, seed):
    x, weight, bias = (
        numbers(seed + i, shape, s)
        for i, (shape, s) in enumerate((((*leading, width), sharp), ((width,), 1), ((width,), 1)))
    )
    got = np.array(cpu_operations.layer_norm(*map(mx.array, (x, weight, bias)), 1e-5))
    expected = written_layer_norm(*(part.astype(np.float64) for part in (x, weight, bias)))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-5)


def test_layer_norm_is_nan_where_squares_overflow_even_if_their_differences_do_not():
    vector = mx.ones(16)
    for x, overflows in ((2.0**70, True), (1e20 + 1e13 * numbers(1, (16,)), True), (2.0**50, False)):
        row = mx.broadcast_to(mx.array(x, mx.float32), (16,))
        assert mx.all(mx.isnan(cpu_operations.layer_norm(row, vector, vector, 1e-5))).item() == overflows


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_the_same_to_the_bit_whatever_is_beside_it(name):
    operation, _, _ = ROWS[name]
    x = numbers(1, (40, 5003))  # shared between threads
    whole = np.array(operation(mx.array(x)))
    for first, last in ((0, 1), (7, 9), (39, 40)):
        np.testing.assert_array_equal(np.array(operation(mx.array(x[first:last]))), whole[first:last])


def test_the_total_of_a_vocabulary_keeps_its_last_digits():
    x = numbers(3, (4, 50257), 0.01)
    np.testing.assert_allclose(
        np.array(cpu_operations.log_total(mx.array(x))), log_total(x.astype(np.float64)), rtol=2e-7
    )


def test_what_was_removed_has_no_probability_and_damage_is_passed_on():
    x = np.zeros((4, 40), np.float32)
    x[0, 3:], x[1, 5], x[2, 5], x[3, :] = -np.inf, np.nan, np.inf, -np.inf
    for damage in (0xFFFFFFFF, 0x7FC00001):  # NaN, too
        x.view(np.uint32)[1, 5] = damage
        assert np.isnan(np.array(cpu_operations.log_total(mx.array(x)))[1])
    some, nan, inf, none = np.array(cpu_operations.exponentials(mx.array(x)))
    np.testing.assert_allclose(some[:3], 1, rtol=2e-7)
    assert not some[3:].any()
    assert np.isnan(nan[5]) and np.isnan(inf[5]) and np.isnan(none).all()
    totals = np.array(cpu_operations.log_total(mx.array(x)))[:, 0]
    assert abs(totals[0] - np.log(3)) < 1e-6 and np.isnan(totals[1:]).all()


@given(V=st.integers(1, 300), rows=st.integers(1, 3), different=st.integers(1, 40), data=st.data())
def test_the_kth_highest_is_that_of_the_sorted_row(V, rows, different, data):
    k = data.draw(st.integers(1, V))
    x = np.random.default_rng(V).choice([-np.inf, *range(different)], (rows, V)).astype(np.float32)
    got = np.array(cpu_operations.kth_highest(mx.array(x), k))
    np.testing.assert_array_equal(got, np.sort(x, axis=-1)[:, V - k : V - k + 1])


@pytest.mark.parametrize("name", ["gate", "gate without a cube", "gelu"])
def test_activations_far_out(name):
    far = np.array(ROWS[name][0](mx.array([-3e38, -100.0, 0.0, 100.0, 1e9, np.inf, np.nan])))
    assert far[0] == 0 and abs(far[1]) < 1e-30 and far[2] == 0 and list(far[3:6]) == [100, 1e9, np.inf]
    assert np.isnan(far[6])


def written_attention(q, k, v, scale, allowed):
    scores = np.where(allowed, (q @ k.swapaxes(2, 3)) * scale, -np.inf)
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(oracles.softmax(scores)) @ v


@given(
    B=st.sampled_from([1, 2, 9, 17]), H=st.sampled_from([1, 3]), L=st.sampled_from([1, 2, 7, 65, 130]),
    before=st.integers(0, 70), width=st.sampled_from([8, 16, 20, 64]), sharp=st.sampled_from([0.1, 1.0, 8.0]),
    seed=SEEDS,
)  # fmt: skip
@pytest.mark.parametrize("mask", ["causal", "bool", "row", "added", None])
def test_attention_is_that_written_out(mask, B, H, L, before, width, sharp, seed):
    S = L + before
    q, k, v = (numbers(seed + i, (B, H, n, width), sharp) for i, n in enumerate((L, S, S)))
    allowed = np.ones((B, 1, L, S), dtype=bool)
    if mask in ("causal", "added"):
        allowed[:] = np.tri(L, S, before, dtype=bool)
    elif mask == "bool":
        allowed = np.random.default_rng(seed).random((B, 1, L, S)) < 0.5
    elif mask == "row":
        allowed = np.broadcast_to((np.arange(S) < 1 + np.arange(B)[:, None])[:, None, None], (B, 1, 1, S))
    given_mask = {
        "causal": "causal",
        "added": mx.array(np.where(allowed, 0, -np.inf), dtype=mx.float32),
        None: None,
    }.get(mask, mx.array(allowed))
    got = np.array(attention(*map(mx.array, (q, k, v)), scale=0.25, mask=given_mask))
    expected = written_attention(*(part.astype(np.float64) for part in (q, k, v)), 0.25, allowed)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * max(1, sharp) ** 2)


def test_attention_of_one_row_and_head_is_the_same_to_the_bit_whatever_is_beside_it():
    q, k, v = (mx.array(numbers(i, (9, 4, n, 64))) for i, n in enumerate((1, 200, 200)))  # shared between threads
    whole = np.array(cpu_operations.attention(q, k, v, 0.1, None))
    for row in (0, 8):
        alone = cpu_operations.attention(q[row : row + 1, 2:3], k[row : row + 1, 2:3], v[row : row + 1, 2:3], 0.1, None)
        np.testing.assert_array_equal(np.array(alone), whole[row : row + 1, 2:3])


def views(x: mx.array) -> list[mx.array]:
    """The same numbers in other places of memory. x: [4, 6, 8]."""
    wide = mx.concatenate([x, x + 1], axis=2)
    turned = mx.contiguous(x[:, ::-1])[:, ::-1]
    return [wide[:, :, :8], mx.contiguous(x.transpose(2, 1, 0)).transpose(2, 1, 0), mx.repeat(x, 2, 1)[:, ::2], turned]


@pytest.mark.parametrize("name", ROWS)
def test_arrays_that_are_views(name):
    operation = ROWS[name][0]
    x = mx.array(numbers(4, (4, 6, 8)))
    for view in [*views(x), mx.broadcast_to(x[:, :1], x.shape), mx.broadcast_to(x[..., :1], x.shape)]:
        np.testing.assert_array_equal(np.array(operation(view)), np.array(operation(mx.contiguous(view))))


def test_keys_and_weights_that_are_views():
    x = mx.array(numbers(4, (4, 6, 8)))
    plain = cpu_operations.attention(x[None], x[None], x[None], 0.5, None)
    for view in views(x):
        np.testing.assert_array_equal(
            np.array(cpu_operations.attention(view[None], view[None], view[None], 0.5, None)), np.array(plain)
        )
    rows, vector = x[0], mx.array(numbers(5, (8,)))
    for weight in (mx.repeat(vector, 2)[::2], mx.broadcast_to(vector[:1], (8,))):
        expected = cpu_operations.layer_norm(rows, mx.contiguous(weight), vector, 1e-5)
        np.testing.assert_array_equal(
            np.array(cpu_operations.layer_norm(rows, weight, vector, 1e-5)), np.array(expected)
        )


def test_what_they_are_not_for_goes_to_mlx():
    """Empty arrays, and keys whose number or shape is not what a decoder's are."""
    assert not cpu_operations.available_for(mx.zeros((0, 5)))
    q, k = mx.array(numbers(1, (1, 2, 40, 8))), mx.array(numbers(2, (1, 2, 3, 8)))
    for mask in ("causal", None):
        ours, theirs = (f(q, k, k, scale=0.5, mask=mask) for f in (attention, mx.fast.scaled_dot_product_attention))
        np.testing.assert_allclose(np.array(ours), np.array(theirs), atol=1e-5)
    with pytest.raises(ValueError):
        attention(q, k[..., :4], k[..., :4], scale=0.5)


@pytest.mark.parametrize("name", cpu_operations.PLAIN)
def test_gradients_are_those_of_mlxs_own_functions(name):
    x = mx.array(numbers(6, (2, 3, 5, 8)))
    plain = cpu_operations.PLAIN[name]
    vector = mx.array(numbers(7, (8,)))
    arrays, settings = {
        "gate": ([x], [1.6, 0.07]),
        "kth_highest": ([x], [3]),
        "layer_norm": ([x, vector, vector + 1], [1e-5]),
        "attention": ([x, x + 1, x - 1], [0.5, 1.0, 0.0]),
    }.get(name, ([x], []))
    shape = plain(arrays, settings).shape
    every = tuple(range(len(arrays)))

    def gradients(compute):
        return mx.grad(lambda *arrays: (compute(list(arrays)) ** 2).sum(), argnums=every)(*arrays)

    ours = gradients(lambda arrays: cpu_operations._call(name, arrays, shape, settings))
    for one, other in zip(ours, gradients(lambda arrays: plain(arrays, settings)), strict=True):
        np.testing.assert_allclose(np.array(one), np.array(other), atol=1e-4)


def test_mlx_vectorizes_them_and_knows_their_shapes():
    x = mx.array(numbers(6, (2, 3, 8)))
    np.testing.assert_allclose(
        np.array(mx.vmap(cpu_operations.log_total)(x)), np.array(cpu_operations.log_total(x)), atol=1e-6
    )
    _, (ours,) = mx.jvp(cpu_operations.gelu, [x], [mx.ones_like(x)])
    np.testing.assert_allclose(np.array(ours), np.array(mx.grad(lambda x: cpu_operations.gelu(x).sum())(x)), atol=1e-6)
    compiled = mx.compile(cpu_operations.log_total, shapeless=True)
    for rows, width in ((2, 8), (3, 5)):
        assert compiled(mx.ones((rows, width))).shape == (rows, 1)


def test_other_types_and_devices_take_mlxs_own_operations(monkeypatch):
    assert cpu_operations.available_for(mx.zeros(3), mx.zeros(2))
    assert not cpu_operations.available_for(mx.zeros(3), mx.zeros(2, mx.float16))
    monkeypatch.setattr(device, "on_cpu", lambda: False)
    assert not cpu_operations.available_for(mx.zeros(3))


def test_several_threads_at_once():
    x = numbers(8, (70, 2000))
    expected, found = np.array(cpu_operations.exponentials(mx.array(x))), []

    def compute() -> None:
        for _ in range(10):
            found.append(np.array(cpu_operations.exponentials(cpu_operations.gate(mx.array(x), 0, 0) * 2)))

    threads = [threading.Thread(target=compute) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    for got in found:
        np.testing.assert_allclose(got, expected, atol=1e-6)


def test_memory_is_given_back():
    x = mx.array(numbers(9, (64, 1024)))
    mx.eval(x)
    before = mx.get_active_memory()
    for _ in range(50):
        mx.eval(cpu_operations.gelu(cpu_operations.exponentials(x) + x))
    gc.collect()
    assert mx.get_active_memory() <= before + 2 * x.nbytes


ANSWER = """
import json, sys
import mlxgen
from mlxgen import blas
{change}
import mlx.core as mx
from mlxgen import cpu_operations
text = mlxgen.generate(mlxgen.load(), "Once upon a time", max_tokens=40, temperature=0).text
print(json.dumps([cpu_operations.available_for(), text]))
"""
CHANGES = {
    "another version of MLX": "import mlx.core, mlxgen._mlx_extension; mlxgen._mlx_extension.mlx_version = '0.1'",
    "no C++ compiler": "sys.modules['mlxgen._mlx_extension'] = None",
    "no C compiler": "blas.EXTENSION_SUFFIXES = []",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_without_them_the_answer_is_the_same(change):
    cwd = Path(os.sep)  # not in the sources, which have no compiled part unless they are installed for development
    (here, expected), (there, text) = (fresh(ANSWER.format(change=line), cwd=cwd) for line in ("", change))
    assert here and not there
    assert text == expected
