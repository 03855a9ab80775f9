"""A session's basics: tokens and cache in step, and logits by NumPy whatever was done before."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import ContextError, OptionError
from mlxgen.generation.session import Session
from mlxgen.network.cache import RotatingKVCache

from ..support import oracles

TABLE = 16


@pytest.fixture(scope="module")
def small(build_model):
    """A model with a table of 16 positions, so that it slides often."""
    return build_model(seed=31, n_positions=TABLE)


@pytest.fixture(scope="module")
def weights(small):
    return oracles.parameters(small.decoder)


@settings(max_examples=80)
@given(
    st.lists(st.lists(st.integers(0, 281), min_size=1, max_size=25), min_size=1, max_size=4),
    st.integers(0, 7),
    st.integers(1, 40),
    st.one_of(st.none(), st.integers(8, 20)),
)
def test_sliding_does_not_depend_on_how_the_tokens_came(small, weights, parts, keep, chunk, max_kv_size):
    """After each slide the logits are a fresh model's on the kept tokens, in a window where the cache rotates."""
    session = Session(small, overflow="slide", keep=keep, prefill_chunk=chunk, max_kv_size=max_kv_size)
    context = []
    for part in parts:
        context += part
        if len(part) == 1 and session.processed == len(session.tokens) > 0:
            session.tokens.extend(part)  # as the loop does
            logits = session.process(mx.array(part))
        else:
            session.extend(part)
            logits = session.prefill()
        kept = oracles.slid_context(context, TABLE, keep)
        expected = oracles.numpy_logits(weights, small.config, kept, max_kv_size, keep if max_kv_size else 0)[-1]
        np.testing.assert_allclose(np.array(logits)[0], expected, rtol=0, atol=1e-4)
        assert session.tokens == context
        assert session.processed == len(context)
        assert session.cache[0].offset == len(kept) <= TABLE


@pytest.mark.parametrize("kind", [{}, {"max_kv_size": 5, "keep": 2}, {"max_kv_size": 5}])
def test_text_and_ids_added_piece_by_piece_are_one_context(small, weights, kind):
    session = Session(small, **kind)
    session.extend("Far")
    session.extend(" far")
    session.prefill()
    session.extend([7, 8, 9])
    tokens = small.tokenizer.encode("Far") + small.tokenizer.encode(" far") + [7, 8, 9]
    assert session.tokens == tokens
    expected = oracles.numpy_logits(weights, small.config, tokens, kind.get("max_kv_size"), kind.get("keep", 0))[-1]
    np.testing.assert_allclose(np.array(session.prefill())[0], expected, rtol=0, atol=1e-4)
    np.testing.assert_allclose(np.array(session.prefill())[0], expected, rtol=0, atol=1e-4)  # asked for again


def test_only_new_tokens_are_processed(small):
    session = Session(small, prefill_chunk=3)
    calls = []
    session.extend([1, 2, 3, 4, 5])
    session.prefill(lambda done, total: calls.append((done, total)))
    session.extend([6])
    session.prefill(lambda done, total: calls.append((done, total)))
    assert calls == [(0, 5), (3, 5), (5, 5), (0, 1), (1, 1)]
    assert session.cache_length == 6


def test_a_position_taken_back_is_processed_again(small, weights):
    session = Session(small)
    session.extend([1, 2, 3])
    first = session.prefill()
    session.rewind(1)
    session.extend([3])
    assert (session.processed, session.cache_length) == (2, 2)
    assert mx.allclose(session.process(mx.array([3])), first, atol=1e-5)


def test_a_full_table_stops(small):
    session = Session(small)
    session.extend(range(TABLE))
    assert session.room == 0
    session.prefill()
    assert session.positions_left == 0
    with pytest.raises(ContextError, match=r"16 positions.*overflow=\"slide\""):
        session.process(mx.array([1]))
    with pytest.raises(ContextError, match="17 tokens"):
        session.extend([1])
    assert len(session.tokens) == TABLE


def test_a_sliding_session_has_no_end(small):
    assert Session(small, overflow="slide").room is None
    assert Session(small).room == TABLE


def test_an_addition_that_is_refused_changes_nothing(small):
    session = Session(small)
    session.extend([1, 2])
    for wrong, error in ([3, 282], OptionError), ([True], OptionError), ([1] * 15, ContextError), (7, OptionError):
        with pytest.raises(error):
            session.extend(wrong)
    assert session.tokens == [1, 2]


def test_a_session_without_tokens_says_so(small):
    with pytest.raises(OptionError, match="empty"):
        Session(small).prefill()


@pytest.mark.parametrize(
    "wrong",
    [
        {"overflow": "wrap"},
        {"prefill_chunk": 0},
        {"keep": -1},
        {"keep": 8, "overflow": "slide"},
        {"max_kv_size": 3, "keep": 3},
        {"max_kv_size": 0},
    ],
    ids=str,
)
def test_wrong_options_are_refused(small, wrong):
    with pytest.raises(OptionError):
        Session(small, **wrong)


def test_the_cache_is_the_callers_if_it_brings_one(small, weights):
    cache = [RotatingKVCache(6, keep=1) for _ in small.decoder.layers]
    session = Session(small, cache=cache)
    session.extend([5, 4, 3, 2, 1, 9, 8, 7])
    expected = oracles.numpy_logits(weights, small.config, session.tokens, 6, 1)[-1]
    np.testing.assert_allclose(np.array(session.prefill())[0], expected, rtol=0, atol=1e-4)
    assert session.cache[0] is cache[0]
    assert cache[0].offset == 8


@pytest.mark.parametrize("option", [{"temperature": -1}, {"max_tokens": 0}, {"colour": 1}, {"stop": 5}], ids=str)
def test_a_refused_option_leaves_the_session_as_it_was(model, option):
    session = Session(model)
    session.extend([1, 2, 3])
    session.generate([4], max_tokens=2, seed=0)
    before, computed = list(session.tokens), session.computed
    for call in (session.generate, session.stream):
        with pytest.raises((ValueError, TypeError)):
            call([5, 6], **option)
        assert session.tokens == before
    session.generate([5, 6], max_tokens=1, seed=0)
    assert session.computed == computed + 3


@pytest.mark.parametrize("guesses", ["none", "lookahead", "draft"])
@pytest.mark.parametrize("kind", [{}, {"max_kv_size": 9, "keep": 2}, {"overflow": "slide"}], ids=str)
@pytest.mark.parametrize("steps", [1, 3, 4, 7, 12])
def test_a_session_in_the_midst_of_an_answer_can_be_used_and_ends_it(model, tmp_path, guesses, kind, steps):
    """Forked, saved, added to or asked again, it goes on from the tokens it was given; only a fork leaves it alone."""
    options = {"none": {}, "lookahead": {"lookahead": True}, "draft": {"draft": model}}[guesses]
    greedy = {"temperature": 0, "ignore_eos": True}

    def begun():
        session = Session(model, **kind)
        answer = session.stream([7, 8, 9], max_tokens=30, **greedy, **options)
        for _ in range(steps):
            next(answer)
        return session, answer

    def fresh(tokens):
        other = Session(model, **kind)
        other.extend(tokens)
        return other.generate(max_tokens=8, **greedy).tokens

    session, answer = begun()
    rest = fresh(session.tokens)
    assert session.fork().generate(max_tokens=8, **greedy).tokens == rest
    assert Session.load(session.save(tmp_path / "s"), model).generate(max_tokens=8, **greedy).tokens == rest
    assert [next(answer).token for _ in range(8)] == rest  # neither ended the answer
    for use in (lambda s: s.extend([5]), lambda s: s.rewind(1), lambda s: s.reset_to([7, 8, 1]), lambda s: None):
        session, answer = begun()
        use(session)
        rest = fresh(session.tokens)
        assert session.generate(max_tokens=8, **greedy).tokens == rest
        with pytest.raises(OptionError, match="start a new answer"):
            next(answer)
        answer.close()
        tokens = list(session.tokens)
        assert session.generate(max_tokens=8, **greedy).tokens == fresh(tokens)
