"""Typical-p and the epsilon and eta cutoffs against transformers' processors and against NumPy in float64."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.sampling.probability_cuts import apply_epsilon_cutoff, apply_eta_cutoff, apply_typical_p, entropy
from mlxgen.sampling.samplers import Sampling, apply_rules
from mlxgen.sampling.softmax import log_softmax, softmax

from ..support import oracles

Array = Any  # a NumPy array
N_OPTION_SETS = 300
CUTS = {"typical_p": apply_typical_p, "epsilon_cutoff": apply_epsilon_cutoff, "eta_cutoff": apply_eta_cutoff}


def kept(logits: object) -> Array:
    return np.isfinite(np.array(logits))


def test_kept_sets_are_those_of_transformers_for_300_option_sets() -> None:
    import torch
    from transformers.generation import logits_process as theirs

    rng = np.random.default_rng(0)
    counts = []
    for case in range(N_OPTION_SETS):
        rows, size = int(rng.integers(1, 4)), int(rng.choice([5, 60, 400, 2000]))
        logits = (rng.uniform(0.5, 6) * rng.standard_normal((rows, size))).astype(np.float32)
        if case % 2:
            logits = np.round(logits, 1)  # with ties
        if case % 3 == 0:
            logits[:, rng.integers(0, size, size // 3)] = -np.inf  # banned tokens
        sampling = Sampling(
            temperature=float(rng.uniform(0.2, 2.5)),
            top_k=None,
            top_p=float(rng.uniform(0.5, 0.99)) if rng.random() < 0.3 else None,
            typical_p=float(rng.uniform(0.05, 0.99)) if rng.random() < 0.6 else None,
            epsilon_cutoff=float(10 ** rng.uniform(-5, 0)) if rng.random() < 0.5 else None,
            eta_cutoff=float(10 ** rng.uniform(-5, 0)) if rng.random() < 0.5 else None,
        )
        scores = theirs.TemperatureLogitsWarper(sampling.temperature)(None, torch.tensor(logits))
        if sampling.top_p is not None and not case % 2:  # with ties, transformers' top-p keeps another order
            scores = theirs.TopPLogitsWarper(sampling.top_p)(None, scores)
        elif sampling.top_p is not None:
            scores = torch.tensor(np.array(apply_rules(mx.array(scores.numpy()), only_top_p(sampling.top_p))))
        if sampling.typical_p is not None:
            scores = theirs.TypicalLogitsWarper(sampling.typical_p)(None, scores)
        if sampling.epsilon_cutoff is not None:
            scores = theirs.EpsilonLogitsWarper(sampling.epsilon_cutoff)(None, scores)
        if sampling.eta_cutoff is not None:
            scores = theirs.EtaLogitsWarper(sampling.eta_cutoff)(None, scores)
        ours = apply_rules(mx.array(logits), sampling)
        assert (kept(ours) == kept(scores.numpy())).all(), sampling
        np.testing.assert_allclose(np.array(softmax(ours)), torch.softmax(scores, dim=-1).numpy(), rtol=0, atol=1e-6)
        counts.append(kept(ours).sum(axis=-1).min())
    assert min(counts) == 1 and max(counts) > 500


def only_top_p(p: float) -> Sampling:
    return Sampling(temperature=1, top_k=None, top_p=p)


few_levels = st.lists(st.integers(-3, 3), min_size=1, max_size=12)


@settings(max_examples=100)
@given(few_levels, st.sampled_from([1e-6, 0.05, 0.3, 0.5, 0.77, 0.999, 1.0]))
def test_typical_p_keeps_the_closest_to_the_entropy_and_all_that_are_as_close(levels: list[int], p: float) -> None:
    logprobs = oracles.log_softmax(np.array(levels, dtype=np.float64))
    probs = np.exp(logprobs)
    far = np.abs(-logprobs + (probs * logprobs).sum())
    order = np.argsort(far)
    reached = np.cumsum(probs[order])
    at_least, at_most = (far[order[min((reached < q).sum(), len(far) - 1)]] for q in (p - 1e-6, p + 1e-6))
    got = kept(apply_typical_p(mx.array([levels], dtype=mx.float32), p))[0]
    assert got[far < at_least - 1e-5].all()
    assert p == 1 or not got[far > at_most + 1e-5].any()
    for level in set(levels):
        assert len({bool(one) for one in got[np.array(levels) == level]}) == 1  # tied tokens share their fate


@settings(max_examples=100)
@given(few_levels, st.sampled_from([0.0, 1e-9, 1e-3, 0.05, 0.2, 0.5, 0.999]))
def test_cutoffs_keep_what_is_probable_enough_and_always_the_best(levels: list[int], epsilon: float) -> None:
    probs = oracles.softmax(np.array(levels, dtype=np.float64))
    eta = min(epsilon, math.sqrt(epsilon) * math.exp((probs * np.log(probs)).sum()))
    logits = mx.array([levels], dtype=mx.float32)
    for apply, bound in ((apply_epsilon_cutoff, epsilon), (apply_eta_cutoff, eta)):
        got = kept(apply(logits, epsilon))[0]
        clear = np.abs(probs - bound) > 1e-6
        assert (got == ((probs >= bound) | (probs == probs.max())))[clear].all()
        assert got[probs == probs.max()].all()


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("value", [5e-324, 1e-50, 1e-30, 1e-8, 0.999999])
def test_some_token_survives_the_extremes_and_a_banned_one_never_does(name: str, value: float) -> None:
    rows = mx.array([[1.0, 3.0, -math.inf, 2.0], [0.0, 0.0, -math.inf, 0.0], [-math.inf, -math.inf, -math.inf, 5.0]])
    ruled = softmax(CUTS[name](rows, value))
    assert not mx.any(mx.isnan(ruled)).item()
    assert (ruled.sum(axis=-1) > 0.99).tolist() == [True] * 3
    assert ruled[:, 2].tolist() == [0, 0, 0]


def test_off_values_change_nothing() -> None:
    logits = mx.array([[1.0, -50.0, 3.0]])
    for name, off in (("typical_p", 1), ("epsilon_cutoff", 0), ("eta_cutoff", 0)):
        assert CUTS[name](logits, off) is logits


def test_the_most_probable_token_may_be_too_predictable_to_be_typical() -> None:
    logits = mx.log(mx.array([[0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]]))
    assert kept(apply_typical_p(logits, 0.5)).tolist() == [[False, True, True, True, True, True, True]]


def test_the_entropy_is_numpys_over_a_whole_vocabulary() -> None:
    logits = np.random.default_rng(3).normal(0, 3, (2, 50_257)).astype(np.float32)
    logits[1, 1000:] = -np.inf
    p = oracles.softmax(logits.astype(np.float64))
    expected = -(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1)
    np.testing.assert_allclose(np.array(entropy(log_softmax(mx.array(logits))))[:, 0], expected, rtol=1e-5)


def test_kept_sets_over_a_whole_vocabulary_are_those_of_transformers() -> None:
    import torch
    from transformers.generation import logits_process as theirs

    logits = np.random.default_rng(4).normal(0, 3, (2, 50_257)).astype(np.float32)
    for name, value, processor in (
        ("typical_p", 0.9, theirs.TypicalLogitsWarper),
        ("epsilon_cutoff", 3e-4, theirs.EpsilonLogitsWarper),
        ("eta_cutoff", 1e-3, theirs.EtaLogitsWarper),
    ):
        expected = kept(processor(value)(None, torch.tensor(logits)).numpy())
        got = kept(CUTS[name](mx.array(logits), value))
        assert expected.any(axis=-1).all() and not expected.all()
        assert (got != expected).sum() <= 2, name  # tokens at the very edge, which rounding may put on either side
