"""The sampling rules against transformers' processors and against NumPy in float64."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen import device
from mlxgen.errors import OptionError
from mlxgen.sampling import samplers
from mlxgen.sampling.chooser import token_counts
from mlxgen.sampling.samplers import (
    Sampling,
    apply_bias,
    apply_min_p,
    apply_penalties,
    apply_rules,
    apply_temperature,
    apply_top_k,
    apply_top_p,
    draw,
    draw_or_accept,
    greedy,
)
from mlxgen.sampling.softmax import softmax

from ..conftest import needs_compiler
from ..support import oracles

N_OPTION_SETS = 500


def random_case(rng):
    """Float32 logits [B, V] and one random set of options."""
    B, V = int(rng.integers(1, 4)), int(rng.choice([5, 60, 400, 2000]))
    logits = (rng.uniform(0.5, 6) * rng.standard_normal((B, V))).astype(np.float32)
    sampling = Sampling(
        temperature=float(rng.uniform(0.2, 2.5)),
        top_k=int(rng.integers(1, V + 10)) if rng.random() < 0.6 else None,
        top_p=float(rng.uniform(0.05, 0.99)) if rng.random() < 0.6 else None,
        min_p=float(rng.uniform(0, 0.5)) if rng.random() < 0.4 else None,
    )
    return logits, sampling


def test_kept_sets_are_those_of_transformers_for_500_option_sets():
    import torch
    from transformers.generation import logits_process as theirs

    rng = np.random.default_rng(0)
    for _ in range(N_OPTION_SETS):
        logits, sampling = random_case(rng)
        scores = theirs.TemperatureLogitsWarper(sampling.temperature)(None, torch.tensor(logits))
        if sampling.top_k is not None:
            scores = theirs.TopKLogitsWarper(sampling.top_k)(None, scores)
        if sampling.top_p is not None:
            scores = theirs.TopPLogitsWarper(sampling.top_p)(None, scores)
        if sampling.min_p is not None:
            scores = theirs.MinPLogitsWarper(sampling.min_p)(None, scores)
        ours = apply_rules(mx.array(logits), sampling)
        assert (np.isfinite(np.array(ours)) == np.isfinite(scores.numpy())).all(), sampling
        np.testing.assert_allclose(np.array(softmax(ours)), torch.softmax(scores, dim=-1).numpy(), rtol=0, atol=1e-6)


def test_probabilities_are_those_of_numpy_for_500_option_sets():
    rng = np.random.default_rng(1)
    for _ in range(N_OPTION_SETS):
        logits, sampling = random_case(rng)
        ours = np.array(softmax(apply_rules(mx.array(logits), sampling)))
        for got, row in zip(ours, logits, strict=True):
            expected = oracles.ruled(row, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
            assert ((got > 0) == (expected > 0)).all(), sampling
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


few_levels = st.lists(st.integers(-3, 3), min_size=1, max_size=12)


@settings(max_examples=100)
@given(few_levels, st.integers(1, 14))
def test_top_k_keeps_exactly_k_and_ties_go_to_the_lower_token(levels, k):
    logits = mx.array([[float(level) for level in levels]])
    kept = np.flatnonzero(np.isfinite(np.array(apply_top_k(logits, k))[0]))
    order = np.argsort(-np.array(levels), kind="stable")
    assert kept.tolist() == sorted(order[:k].tolist())


@settings(max_examples=100)
@given(few_levels, st.sampled_from([1e-6, 0.05, 0.3, 0.5, 0.77, 0.999, 1.0]))
def test_top_p_keeps_the_smallest_leading_set_in_the_order_of_token_ids(levels, p):
    logits = np.array([levels], dtype=np.float32)
    kept = np.flatnonzero(np.isfinite(np.array(apply_top_p(mx.array(logits), p))[0]))
    order = np.argsort(-logits[0], kind="stable")
    leading = order[: len(kept)]
    assert kept.tolist() == sorted(leading.tolist())
    probs = oracles.softmax(logits[0].astype(np.float64))[order]
    assert probs[: len(kept)].sum() >= p - 1e-6
    assert probs[: len(kept) - 1].sum() < p + 1e-6


@pytest.mark.parametrize("p", [5e-324, 1e-50, 1e-30, 1e-8])
def test_some_token_survives_even_the_smallest_top_p(p):
    kept = apply_rules(mx.array([[1.0, 3.0, 2.0]]), Sampling(temperature=1, top_k=None, top_p=p))
    assert softmax(kept).tolist() == [[0.0, 1.0, 0.0]]


@pytest.mark.parametrize("temperature", [5e-324, 1e-46, 1e-40, 1e-38, 1e-20, 1e-3])
def test_a_tiny_temperature_is_as_good_as_greedy(temperature):
    logits = mx.array([[-50.0, 30.0, 29.0, -80.0]])
    ruled = apply_rules(logits, Sampling(temperature=temperature))
    assert softmax(ruled).tolist() == [[0.0, 1.0, 0.0, 0.0]]


def test_a_huge_temperature_makes_all_tokens_alike():
    ruled = apply_rules(mx.array([[-50.0, 30.0, 29.0, -80.0]]), Sampling(temperature=1e30, top_k=None))
    assert softmax(ruled).tolist() == [[0.25] * 4]


def test_the_crossing_token_is_in():
    logits = mx.log(mx.array([[0.5, 0.3, 0.15, 0.05]]))
    for p, kept in ((0.4, 1), (0.6, 2), (0.81, 3), (0.96, 4)):
        assert int(mx.isfinite(apply_top_p(logits, p)).sum()) == kept


def test_top_p_acts_on_what_temperature_and_top_k_left():
    logits = mx.log(mx.array([[0.4, 0.3, 0.2, 0.1]]))
    hot = apply_rules(logits, Sampling(temperature=2, top_k=None, top_p=0.85))
    assert int(mx.isfinite(hot).sum()) == 4  # at temperature 1 it would be 3
    of_two = apply_rules(logits, Sampling(temperature=1, top_k=2, top_p=0.55))
    assert int(mx.isfinite(of_two).sum()) == 1  # 0.4 of 0.7 is more than 0.55


def test_min_p_is_relative_to_the_best():
    logits = mx.log(mx.array([[0.5, 0.26, 0.24]]))
    assert mx.isfinite(apply_min_p(logits, 0.5)).tolist() == [[True, True, False]]
    assert mx.array_equal(apply_min_p(logits, 0), logits)


def test_banned_tokens_stay_out_whatever_the_rules_keep():
    logits = apply_bias(mx.array([[3.0, 2.0, 1.0]]), {0: -math.inf})
    for sampling in (Sampling(temperature=1, top_k=2), Sampling(temperature=1, top_p=1.0), Sampling(temperature=0)):
        assert softmax(apply_rules(logits, sampling)).tolist()[0][0] == 0.0


def test_greedy_takes_the_highest_and_the_lower_of_equals():
    rows = mx.array([[0.0, 5.0, 5.0], [7.0, 7.0, 7.0], [-math.inf, -3.0, -2.0]])
    assert greedy(rows).tolist() == [1, 0, 2]
    kept = apply_rules(rows, Sampling(temperature=0))
    assert mx.isfinite(kept).sum(axis=-1).tolist() == [1, 1, 1]
    assert greedy(kept).tolist() == [1, 0, 2]


def test_temperature_divides():
    logits = mx.array([[1.0, 2.0, -4.0]])
    assert apply_temperature(logits, 0.5).tolist() == [[2.0, 4.0, -8.0]]
    assert apply_temperature(logits, 1).tolist() == logits.tolist()


def test_drawn_tokens_have_the_distribution():
    """By chi-square: 9 degrees of freedom, 1 in 1,000."""
    probabilities = np.array([0.25, 0.2, 0.15, 0.1, 0.1, 0.08, 0.05, 0.04, 0.02, 0.01])
    rows = mx.repeat(mx.log(mx.array([probabilities.tolist()])), 100_000, axis=0)
    drawn = np.array(draw(rows, mx.random.key(3)))
    assert oracles.chi_square(np.bincount(drawn, minlength=10), probabilities) < 27.9


@pytest.mark.parametrize("V", [2000, 2048, 2049, 6000, 50_257])
def test_the_kth_highest_logit_is_numpys_whatever_the_vocabulary(V):
    rng = np.random.default_rng(V)
    logits = rng.normal(size=(2, V)).astype(np.float32)
    logits[1] = np.round(logits[1], 1)  # many ties
    logits[1, : V - 30] = -np.inf  # fewer tokens left than some k
    for k in (1, 2, 40, 500, 1999):
        expected = -np.sort(-logits, axis=-1)[:, k - 1 : k]
        assert np.array_equal(np.array(samplers.kth_highest(mx.array(logits), k)), expected)


def rounding_badly(monkeypatch):
    """Sums that rounding has spoilt, far worse than on a GPU: they go up at tokens without probability too."""
    exact = samplers.total_before
    monkeypatch.setattr(samplers, "total_before", lambda x: exact(x) + 0.4 * (x == 0) * mx.max(x))


def test_a_removed_token_is_never_drawn(monkeypatch):
    rounding_badly(monkeypatch)
    logits = mx.array([[-math.inf, 1.0, -math.inf, 3.0], [1.0, 2.0, 3.0, 4.0], [-math.inf, -math.inf, 0.0, -math.inf]])
    drawn = [draw(logits, mx.random.key(seed)).tolist() for seed in range(100)]
    assert [set(tokens) for tokens in zip(*drawn, strict=True)] == [{1, 3}, {0, 1, 2, 3}, {2}]
    monkeypatch.setattr(samplers, "draw_numbers", lambda key, rows: mx.full((rows,), 2.0))  # past every end
    assert draw(logits, mx.random.key(0)).tolist() == [3, 3, 2]


def test_a_removed_token_is_never_drawn_after_a_rejected_guess(monkeypatch):
    rounding_badly(monkeypatch)
    logits = mx.array([[-math.inf, 3.0, 1.0, 2.0, -math.inf]])
    guessed_from = mx.array([[0.0, 5.0, 0.0, 0.0, 0.0]])  # more of token 1 than the logits have: it is often rejected
    tokens = [
        draw_or_accept(logits, mx.array([1], mx.uint32), guessed_from, mx.random.key(seed)).item()
        for seed in range(100)
    ]
    assert set(tokens) == {1, 2, 3}


def test_a_removed_token_is_in_no_text(monkeypatch, model):
    rounding_badly(monkeypatch)
    options = {"max_tokens": 12, "seed": 2, "top_k": 3, "logprobs": 3, "ignore_eos": True}
    answers = [mlxgen.generate(model, [1, 2], **options), *mlxgen.batch(model, [[1, 2], [3]], **options)]
    for answer in answers:
        for token, candidates in zip(answer.tokens, answer.candidates, strict=True):
            assert token in [candidate.token for candidate in candidates if candidate.kept]


def test_the_repetition_penalty_is_that_of_transformers():
    import torch
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    rng = np.random.default_rng(4)
    for penalty in (0.5, 1.0, 1.3, 5.0):
        logits = rng.standard_normal((1, 30)).astype(np.float32)
        context = rng.integers(0, 30, 12).tolist()
        expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([context]), torch.tensor(logits)).numpy()
        got = apply_penalties(
            mx.array(logits), token_counts(context, 30), Sampling(repetition_penalty=penalty, top_k=None)
        )
        np.testing.assert_allclose(np.array(got), expected, rtol=0, atol=1e-6)


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 9), max_size=20),
    st.one_of(st.none(), st.floats(-2, 2, width=32)),
    st.one_of(st.none(), st.floats(-2, 2, width=32)),
    st.one_of(st.none(), st.floats(0.25, 4, width=32)),
)
def test_penalties_are_those_of_numpy(context, presence, frequency, repetition):
    logits = np.random.default_rng(5).standard_normal(10).astype(np.float32)
    expected = logits.astype(np.float64)
    for token in set(context):
        if repetition is not None:
            expected[token] = expected[token] / repetition if expected[token] > 0 else expected[token] * repetition
        expected[token] -= (presence or 0) + (frequency or 0) * context.count(token)
    sampling = Sampling(presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=repetition)
    got = apply_penalties(mx.array(logits[None]), token_counts(context, 10), sampling)
    np.testing.assert_allclose(np.array(got)[0], expected, rtol=0, atol=1e-5)


def test_bias_adds_and_bans():
    logits = mx.array([[1.0, 2.0, 3.0]])
    assert apply_bias(logits, {0: 5.5, 2: -math.inf}).tolist() == [[6.5, 2.0, -math.inf]]
    with pytest.raises(OptionError, match="token 3"):
        apply_bias(logits, {3: 1.0})


WRONG = [
    ("temperature", [-0.1, math.nan, math.inf, -math.inf, None, "hot", True, 10**400]),
    ("top_k", [0, -3, 2.5, "many", True]),
    ("top_p", [0, -0.1, 1.01, math.nan, math.inf, "most", 10**400]),
    ("min_p", [-0.1, 1.1, math.nan, "some"]),
    ("repetition_penalty", [0, -1, math.nan, math.inf, "much"]),
    ("presence_penalty", [math.nan, math.inf, "much"]),
    ("frequency_penalty", [math.nan, -math.inf, "much"]),
    ("logit_bias", [{-1: 1.0}, {0: math.nan}, {0: math.inf}, {"a": 1.0}, {1.5: 1.0}, {0: "much"}]),
]


@pytest.mark.parametrize(
    ("name", "value"),
    [pytest.param(name, value, id=f"{name}={str(value)[:9]}") for name, values in WRONG for value in values],
)
def test_a_wrong_option_is_told_in_one_line_that_names_it(name, value):
    with pytest.raises(OptionError, match=name) as caught:
        Sampling(**{name: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in Sampling.__annotations__ if name not in ("bad_words", "logit_bias")])
def test_a_text_in_place_of_a_number_is_quoted_escaped_and_cut(name):
    for text in ("0.5", "a\nb", "\ud800", "x" * 10_000):
        with pytest.raises(OptionError, match=name) as caught:
            Sampling(**{name: text})
        message = str(caught.value)
        assert repr(text)[:60] in message and message.isprintable() and len(message) < 200


def test_the_largest_and_smallest_right_options_are_taken():
    Sampling(temperature=0, top_k=1, top_p=1, min_p=1, repetition_penalty=1e-3, logit_bias={0: -math.inf, 5: 3})
    Sampling(temperature=100, top_k=10**9, top_p=1e-9, min_p=0, presence_penalty=-2, frequency_penalty=2)
    assert mx.array_equal(apply_top_k(mx.array([[1.0, 2.0]]), 10**9), mx.array([[1.0, 2.0]]))


def test_a_draw_never_returns_a_token_that_was_cut(monkeypatch):
    """Also where the device's sums give a cut token a width, or the number lies past the last end."""
    logits = mx.array([[-math.inf, 1.0, -math.inf, 0.0, -math.inf]])
    for number in (0.0, 0.5, 0.9999999, 1.0):
        monkeypatch.setattr(samplers, "draw_numbers", lambda key, rows, number=number: mx.full((rows,), number))
        assert draw(logits, mx.random.key(0)).item() in (1, 3)
    uneven = lambda weights: mx.array([[0.0, 1e-3, 0.7, 0.6, 0.9]])  # noqa: E731
    monkeypatch.setattr(samplers, "total_before", uneven)
    for number in np.linspace(0, 1, 101):
        monkeypatch.setattr(samplers, "draw_numbers", lambda key, rows, number=number: mx.full((rows,), float(number)))
        assert draw(logits, mx.random.key(0)).item() in (1, 3)


def test_each_row_of_a_draw_depends_on_its_own_key_alone():
    logits = mx.random.normal((5, 300), key=mx.random.key(1))
    keys = mx.stack([mx.random.key(seed) for seed in range(5)])
    alone = [draw(logits[at : at + 1], keys[at]).item() for at in range(5)]
    assert draw(logits, keys).tolist() == alone


@needs_compiler
def test_fused_comparisons_keep_what_plain_ones_keep(monkeypatch):
    """As on Metal: the comparisons of a rule are one compiled function, whatever the number of rows."""
    rng = np.random.default_rng(8)
    for rows in (1, 3):
        logits = mx.array(np.round(rng.normal(0, 3, (rows, 700)), 1).astype(np.float32))  # with ties
        key = mx.random.key(rows)
        plain = [apply_top_k(logits, 40), apply_top_p(logits, 0.9), draw(apply_top_k(logits, 40), key)]
        with monkeypatch.context() as patch:
            patch.setattr(device, "on_cpu", lambda: False)
            fused = [apply_top_k(logits, 40), apply_top_p(logits, 0.9), draw(apply_top_k(logits, 40), key)]
            mx.eval(fused)
        assert all(mx.array_equal(one, other).item() for one, other in zip(plain, fused, strict=True))
