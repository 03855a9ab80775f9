"""Softmax and its sums against NumPy in float64."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxgen.sampling.softmax import log_softmax, softmax, total, total_before

from ..support import oracles


@pytest.mark.parametrize("V", [1, 3, 255, 256, 257, 50_257])
def test_softmax_and_its_sums_are_numpys_whatever_the_vocabulary(V):
    rng = np.random.default_rng(6)
    for scale in (0.01, 1, 6):
        logits = (scale * rng.standard_normal((2, V)) - 100).astype(np.float32)
        exact = logits.astype(np.float64)
        np.testing.assert_allclose(np.array(softmax(mx.array(logits))), oracles.softmax(exact), rtol=0, atol=1e-6)
        np.testing.assert_allclose(
            np.array(log_softmax(mx.array(logits))), oracles.log_softmax(exact), rtol=0, atol=5e-6
        )
        shares = -np.sort(-oracles.softmax(exact), axis=-1).astype(np.float32)
        before = np.cumsum(shares.astype(np.float64), axis=-1) - shares
        np.testing.assert_allclose(np.array(total_before(mx.array(shares))), before, rtol=0, atol=2e-6)
        np.testing.assert_allclose(np.array(total(mx.array(shares)))[:, 0], shares.sum(axis=-1), rtol=2e-6)
