"""The CPU's forms of sigmoid and attention that MLX's own operations make, against NumPy in float64."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen import cpu_operations, device
from mlxgen.network import cpu_kernels

from ..support import oracles
from ..support.devices import cpu_only

cpu_forms = cpu_only("a GPU takes MLX's own functions")
LARGE = (130, 128)  # above cpu_kernels.LARGE


@pytest.fixture(autouse=True, scope="module")
def without_compiled_operations():
    """They would be used instead: see test_cpu_operations.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_operations, "available_for", lambda *arrays: False)
        yield


@cpu_forms
def test_a_large_sigmoid_is_that_of_numpy_also_far_out():
    x = np.linspace(-80, 80, LARGE[0] * LARGE[1]).astype(np.float32).reshape(LARGE)
    got = np.array(cpu_kernels.sigmoid(mx.array(x)))
    np.testing.assert_allclose(got, oracles.sigmoid(x.astype(np.float64)), rtol=0, atol=3e-7)
    ends = mx.concatenate([mx.array([-np.inf, -1e30, 1e30, np.inf, np.nan]), mx.zeros(cpu_kernels.LARGE)])
    low, lower, high, higher, nan = np.array(cpu_kernels.sigmoid(ends))[:5]
    assert abs(low) < 1e-44 and abs(lower) < 1e-44  # times the largest float32, still nothing
    assert high == higher == 1 and np.isnan(nan)


@cpu_forms
def test_gradients_are_those_of_mlxs_own_functions():
    x = mx.random.normal(LARGE)
    ours = mx.grad(lambda x: (x * cpu_kernels.sigmoid(x)).sum())(x)
    theirs = mx.grad(lambda x: (x * mx.sigmoid(x)).sum())(x)
    assert mx.allclose(ours, theirs, atol=1e-5)
    q, k, v = (mx.random.normal((1, 2, 2 * cpu_kernels.ROWS + 1, 16)) for _ in range(3))

    def pulled(attention):
        return mx.grad(lambda *qkv: (attention(*qkv, scale=0.25, mask="causal") ** 2).sum(), argnums=(0, 1, 2))(q, k, v)

    for ours, theirs in zip(pulled(cpu_kernels.attention), pulled(mx.fast.scaled_dot_product_attention), strict=True):
        assert mx.allclose(ours, theirs, atol=1e-4)


def written_attention(q, k, v, scale, allowed):
    scores = (q @ k.swapaxes(2, 3)) * scale
    return oracles.softmax(np.where(allowed, scores, -np.inf)) @ v


@cpu_forms
@settings(max_examples=20)
@given(
    B=st.integers(1, 2), H=st.sampled_from([1, 3]), L=st.integers(128, 300), before=st.integers(0, 50),
    sharp=st.sampled_from([0.1, 1.0, 8.0]), seed=st.integers(0, 1000),
)  # fmt: skip
@pytest.mark.parametrize("mask", ["causal", "bool", "added", None])
def test_large_attention_is_that_written_out(mask, B, H, L, before, sharp, seed):
    rng = np.random.default_rng(seed)
    S = L + before
    q, k, v = (sharp * rng.standard_normal((B, H, n, 16)) for n in (L, S, S))
    assert B * H * L * S >= cpu_kernels.LARGE
    allowed = np.tri(L, S, before, dtype=bool)
    if mask is None:
        allowed[:] = True
    given_mask = {
        "causal": "causal",
        "bool": mx.array(allowed),
        "added": mx.array(np.where(allowed, 0, -np.inf), dtype=mx.float32),
        None: None,
    }[mask]
    arrays = [mx.array(part, dtype=mx.float32) for part in (q, k, v)]
    got = np.array(cpu_kernels.attention(*arrays, scale=0.25, mask=given_mask))
    np.testing.assert_allclose(got, written_attention(q, k, v, 0.25, allowed), rtol=0, atol=1e-4 * sharp)


@cpu_forms
@settings(max_examples=20)
@given(B=st.integers(1, 20), S=st.integers(1, 90), masked=st.booleans(), seed=st.integers(0, 1000))
def test_attention_of_one_query_is_that_written_out(B, S, masked, seed):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((B, 3, n, 16)) for n in (1, S, S))
    filled = rng.integers(1, S + 1, B) if masked else np.full(B, S)
    allowed = (np.arange(S) < filled[:, None])[:, None, None]
    arrays = [mx.array(part, dtype=mx.float32) for part in (q, k, v)]
    got = cpu_kernels.attention(*arrays, scale=0.25, mask=mx.array(allowed) if masked else None)
    np.testing.assert_allclose(np.array(got), written_attention(q, k, v, 0.25, allowed), rtol=0, atol=1e-5)


@cpu_forms
def test_a_row_that_may_read_nothing_is_finite():
    q = mx.random.normal((1, 2, 128, 8))
    mask = mx.zeros((128, 128), dtype=mx.bool_)
    assert mx.all(mx.isfinite(cpu_kernels.attention(q, q, q, scale=1.0, mask=mask)))


@pytest.mark.parametrize(
    ("shape", "dtype", "on_cpu", "ours"),
    [
        (LARGE, mx.float32, True, True),
        ((4, 4), mx.float32, True, False),
        (LARGE, mx.float16, True, False),
        (LARGE, mx.float32, False, False),
    ],
)
def test_they_are_used_for_large_float32_on_the_cpu_alone(monkeypatch, shape, dtype, on_cpu, ours):
    used = []
    monkeypatch.setattr(device, "on_cpu", lambda: on_cpu)
    monkeypatch.setattr(cpu_kernels, "exp2", lambda t: used.append(t.shape) or mx.exp(t))
    x = mx.zeros(shape, dtype)
    cpu_kernels.sigmoid(x)
    cpu_kernels.attention(x[None, None], x[None, None], x[None, None], scale=1.0)
    assert len(used) == (2 if ours else 0)
