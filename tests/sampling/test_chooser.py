"""The chooser: what it draws, accepts and counts, and what its seeds decide."""

from __future__ import annotations

import io
import math
import warnings
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxgen.errors import OptionError
from mlxgen.generation.request import checked_seed, sample_seeds
from mlxgen.sampling.bans import Bans
from mlxgen.sampling.chooser import Chooser, Guess
from mlxgen.sampling.samplers import (
    Sampling,
)

from ..support import oracles


@pytest.mark.parametrize("way", ["one seed, a key a step", "a seed a sample"])
def test_tokens_that_a_chooser_draws_have_the_rules_distribution(way):
    """By chi-square: 4 degrees of freedom, 1 in 1,000."""
    n = 1500
    logits = mx.array(np.log([[0.3, 0.05, 0.2, 0.25, 0.15, 0.05]]).astype(np.float32))
    sampling = Sampling(temperature=0.7, top_k=5, top_p=0.999)
    if way == "a seed a sample":
        choosers = [Chooser(sampling, seed, [], 6) for seed in sample_seeds(12, n)]
        tokens = [choose(logits).token for choose in choosers]
    else:
        choose = Chooser(sampling, 12, [], 6)
        tokens = [choose(logits).token for _ in range(n)]
    drawn = np.bincount(np.array(mx.concatenate(tokens)), minlength=6)
    expected = oracles.ruled(np.array(logits)[0], temperature=0.7, top_k=5, top_p=0.999)
    assert (drawn[expected == 0] == 0).all()
    assert oracles.chi_square(drawn[expected > 0], expected[expected > 0]) < 18.5


def test_a_chooser_counts_its_own_tokens():
    """Greedy with a presence penalty goes down the ranking, one token after another."""
    logits = mx.array([[4.0, 3.0, 2.0, 1.0]])
    choose = Chooser(Sampling(temperature=0, presence_penalty=100.0), 0, [1], 4)
    assert [int(choose(logits).token.item()) for _ in range(3)] == [0, 2, 3]


def test_all_penalties_at_once_are_those_of_numpy():
    """Greedy, so that each choice changes the counts of the next."""
    logits, counts = np.random.default_rng(3).standard_normal(6), np.zeros(6)
    sampling = Sampling(temperature=0, repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.2)
    choose = Chooser(sampling, 0, [], 6)
    for _ in range(12):
        seen = counts > 0
        ruled = np.where(seen, np.where(logits > 0, logits / 1.5, logits * 1.5), logits) - 0.3 * seen - 0.2 * counts
        token = choose(mx.array(logits[None].astype(np.float32))).token.item()
        assert token == ruled.argmax()
        counts[token] += 1
    assert (counts > 1).any()


def test_logprobs_are_the_models_own_whatever_the_rules():
    logits = mx.array([[2.0, 1.0, 0.0, -1.0]])
    choose = Chooser(Sampling(temperature=0.3, top_k=2, logit_bias={1: 50.0}), 0, [], 4, candidates=9)
    choice = choose(logits)
    expected = oracles.log_softmax(np.array(logits, dtype=np.float64))[0]
    assert choice.token.item() == 1
    assert choice.logprob.item() == pytest.approx(expected[1], abs=1e-6)
    ids, logprobs, ruled = (column[0] for column in choice.top)
    assert ids.tolist() == [0, 1, 2, 3]  # by the model's own ranking, and no more than the vocabulary
    np.testing.assert_allclose(np.array(logprobs), expected, atol=1e-6)
    assert ruled.tolist() == [0.0, 1.0, 0.0, 0.0]


def test_seeds():
    assert checked_seed(7) == 7
    assert checked_seed(2**63 - 1) == 2**63 - 1
    assert len({checked_seed(None) for _ in range(20)}) > 1
    for wrong in (-1, 2**63, 1.5, "x", True):
        with pytest.raises(OptionError, match="seed"):
            checked_seed(wrong)
    assert sample_seeds(5, 4) == sample_seeds(5, 4)
    assert sample_seeds(5, 4)[:2] == sample_seeds(5, 2)
    assert sample_seeds(5, 1) == [5]
    assert len(set(sample_seeds(5, 1000))) == 1000
    with pytest.raises(OptionError, match="num_samples"):
        sample_seeds(5, 0)


def test_the_largest_seed_is_a_key():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokens = [Chooser(Sampling(temperature=1), seed, [], 1000)(mx.zeros((1, 1000))).token.item() for seed in SEEDS]
    assert len(set(tokens)) == len(SEEDS), "seeds that differ only in their upper half differ"


SEEDS = (0, 1, 2**32, 2**32 + 1, 2**63 - 1)


def test_a_drawn_guess_is_accepted_as_often_as_can_be_and_what_is_kept_is_the_models_own():
    """Accepted with probability 1 - d at total variation distance d; chi-square, 49 degrees of freedom, 1 in 10^4."""
    chance = np.random.default_rng(0)
    logits = mx.array(chance.normal(size=(1, 50)).astype(np.float32))
    drafted = logits + mx.array(0.5 * chance.normal(size=(1, 50)).astype(np.float32))
    p, q = (oracles.softmax(np.array(x, dtype=np.float64)) for x in (logits, drafted))
    choose, draft = (Chooser(Sampling(temperature=1.0, top_k=None), seed, [], 50) for seed in (0, 1))
    counts, agreed, n = np.zeros(50), 0, 4000
    for _ in range(n):
        guess = draft.guess(drafted)
        token = choose(logits, guess).token.item()
        counts[token] += 1
        agreed += token == guess.token.item()
    assert agreed / n == pytest.approx(1 - np.abs(p - q).sum() / 2, abs=0.03)
    assert oracles.chi_square(counts, p[0]) < 93


def test_where_nothing_is_left_after_a_guess_the_models_own_distribution_is_drawn_from():
    """Two distributions that are equal but for rounding, and a guess that is not accepted all the same."""
    logits = mx.array([[-math.inf, 1.0, 2.0, -math.inf]])
    choose = Chooser(Sampling(temperature=1.0, top_k=None), 0, [], 4)
    tokens = {choose(logits, Guess(mx.array([0], mx.uint32), logits)).token.item() for _ in range(200)}
    assert tokens == {1, 2}  # 0 has no probability, so it is never accepted, and nothing exceeds the draft's


BANS = Bans(no_repeat_ngram=3, window=64, bad_words=((1, 2), (3,)), min_tokens=5, end_tokens=(4,), suppress_tokens=(5,))
RULES: list[tuple[dict[str, Any], Bans]] = [
    ({"temperature": 0}, Bans()),
    ({}, Bans()),
    ({"top_p": 0.9}, Bans()),
    ({"repetition_penalty": 1.2}, Bans()),
    ({"typical_p": 0.9, "epsilon_cutoff": 1e-3, "eta_cutoff": 1e-3}, Bans()),
    ({"temperature": 0}, BANS),
]


def operations(choose: Chooser, rows: int, vocab_size: int) -> int:
    """Operations in the graph of one choice."""
    mx.eval(choose.state)
    choice = choose(mx.zeros((rows, vocab_size)))
    graph = io.StringIO()
    mx.export_to_dot(graph, *choice.arrays, *choose.state)
    return graph.getvalue().count("shape=rectangle")


@pytest.mark.parametrize(("rules", "bans"), RULES, ids=str)
def test_many_rows_with_the_same_rules_take_no_more_operations_than_one(rules, bans):
    counts = []
    for n in (1, 32):
        choose, *others = (Chooser(Sampling(**rules), seed, [1, 2], 500, bans=bans) for seed in range(n))
        for other in others:
            choose.join(other)
        counts.append(operations(choose, n, 500))
    assert counts[1] <= 1.2 * counts[0]


def test_rules_that_are_off_add_no_operation():
    plain = operations(Chooser(Sampling(), 0, [1], 500), 1, 500)
    off = Sampling(no_repeat_ngram=None, bad_words=(), min_tokens=0, suppress_tokens=(), typical_p=1, epsilon_cutoff=0)
    assert operations(Chooser(off, 0, [1], 500, bans=Bans()), 1, 500) == plain
    past = Chooser(Sampling(), 0, [1], 500, bans=Bans(min_tokens=1, end_tokens=(4,)))
    assert operations(past, 1, 500) > plain  # the first token may not be the end
    assert operations(past, 1, 500) == plain
