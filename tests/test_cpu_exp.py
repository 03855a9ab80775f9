"""The exponential function of large arrays on the CPU, compared with NumPy in float64."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxgen import cpu_exp, device
from mlxgen.sampling.softmax import log_softmax


def test_powers_of_two_are_exact_to_the_last_bits_of_float32():
    t = np.linspace(-126, 126, 100_003).astype(np.float32)
    got = np.array(cpu_exp.exp2(mx.array(t))).astype(np.float64)
    np.testing.assert_allclose(got, 2.0 ** t.astype(np.float64), rtol=3e-7)


@pytest.mark.parametrize("on_cpu", [True, False])
def test_log_probabilities_of_a_large_vocabulary_are_those_of_numpy(
    monkeypatch: pytest.MonkeyPatch, on_cpu: bool
) -> None:
    monkeypatch.setattr(device, "on_cpu", lambda: on_cpu)
    logits = np.random.default_rng(0).normal(0, 8, (3, cpu_exp.LARGE)).astype(np.float32)
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact - exact.max(-1, keepdims=True)).sum(-1, keepdims=True)) + exact.max(-1, keepdims=True)
    np.testing.assert_allclose(np.array(log_softmax(mx.array(logits))), exact, atol=4e-6)


def test_far_below_zero_it_is_next_to_nothing() -> None:
    x = mx.concatenate([mx.array([-200.0, -1e30, -mx.inf]), mx.zeros(cpu_exp.LARGE)])
    assert mx.all(cpu_exp.exp_of_negative(x)[:3] < 2e-38).item()
