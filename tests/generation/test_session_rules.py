"""Sessions: whatever was done to one, its logits are those the rule gives for its tokens."""

from collections.abc import Sequence
from string import ascii_lowercase

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import ContextError, OptionError
from mlxgen.generation.session import Session

from ..support import oracles
from ..support.models import letter_tokenizer, tiny_gpt2

N = 16  # positions of the table
VOCABULARY = 26


MODEL = tiny_gpt2(3, letter_tokenizer(ascii_lowercase), n_positions=N, n_embd=16, n_head=2).model()
WEIGHTS = oracles.parameters(MODEL.decoder)
numbers = st.integers(min_value=0, max_value=VOCABULARY - 1)


def plain_logits(tokens: Sequence[int], keep: int = 0, max_size: int | None = None) -> np.ndarray:
    """The last token's logits from one pass over what sliding leaves, with the mask written out."""
    context = oracles.slid_context(tokens, N, keep)
    return oracles.numpy_logits(WEIGHTS, MODEL.config, context, max_size, keep)[-1]


def logits_now(session: Session) -> np.ndarray:
    return np.array(session.prefill())[0]


operations = st.one_of(
    st.tuples(st.just("extend"), st.lists(numbers, min_size=1, max_size=3 * N)),
    st.tuples(st.just("generate"), st.integers(1, 2 * N)),
    st.tuples(st.just("rewind"), st.integers(0, 2 * N)),
    st.tuples(st.just("fork"), st.booleans()),
    st.tuples(st.just("mark"), st.none()),
    st.tuples(st.just("to mark"), st.none()),
    st.tuples(st.just("reset"), st.tuples(st.integers(0, 2 * N), st.lists(numbers, min_size=1, max_size=N))),
    st.tuples(st.just("look"), st.none()),
)


@settings(max_examples=100, deadline=None)
@given(
    first=st.lists(numbers, min_size=1, max_size=3 * N),
    todo=st.lists(operations, max_size=8),
    keep=st.integers(0, N // 2 - 1),
    window=st.none() | st.integers(1, N + 3),
    chunk=st.integers(1, N + 2),
)
def test_any_order_of_rewind_fork_slide_and_chunks_gives_the_rules_logits(first, todo, keep, window, chunk):
    max_size = None if window is None else keep + window
    session = Session(MODEL, keep=keep, max_kv_size=max_size, overflow="slide", prefill_chunk=chunk)
    session.extend(first)
    mark, others = session.mark(), []
    for name, value in todo:
        if name == "extend":
            session.extend(value)
        elif name == "generate":
            session.generate(max_tokens=value, seed=1, ignore_eos=True)
            assert session.processed == len(session.tokens) - 1
        elif name == "rewind":
            session.rewind(min(value, len(session.tokens) - 1))
        elif name == "fork":
            other = session.fork()
            session, other = (other, session) if value else (session, other)
            others.append((other, list(other.tokens)))
        elif name == "mark":
            mark = session.mark()
        elif name == "to mark" and mark.tokens <= len(session.tokens):
            session.rewind(to=mark)
        elif name == "reset":
            session.reset_to(session.tokens[: value[0]] + value[1])
        elif name == "look":
            logits_now(session)
        assert session.cache_length <= min(N, max_size or N)
        mark = mark if mark.tokens <= len(session.tokens) else session.mark()
    for one, tokens in [*others, (session, list(session.tokens))]:
        assert one.tokens == tokens
        expected = plain_logits(tokens, keep, max_size)
        np.testing.assert_allclose(logits_now(one), expected, atol=1e-4)
        assert one.cache[0].offset <= N


@settings(max_examples=40, deadline=None)
@given(
    pieces=st.lists(st.lists(numbers, min_size=1, max_size=6), min_size=1, max_size=5),
    answers=st.integers(1, 3),
    window=st.none() | st.integers(4, N),
)
def test_each_token_is_processed_once(pieces, answers, window):
    session = Session(MODEL, max_kv_size=window, overflow="slide")
    for piece in pieces:
        if len(session.tokens) + len(piece) + answers > N:
            break
        session.generate(piece, max_tokens=answers, seed=0)
        # The look-ahead past the last token of an answer is never asked for, so nothing is computed in vain.
        assert session.computed == len(session.tokens) - 1


def test_two_continuations_of_one_prompt_cost_one_prefill():
    session = Session(MODEL)
    session.extend("abcdefgh")
    mx.eval(session.prefill())
    one, two = session.fork(), session.fork()
    for fork, addition in ((one, "ab"), (two, "cd")):
        fork.extend(addition)
        mx.eval(fork.prefill())
        assert fork.computed - session.computed == 2
    for fork, tokens in ((one, "abcdefghab"), (two, "abcdefghcd"), (session, "abcdefgh")):
        expected = plain_logits(MODEL.tokenizer.encode(tokens))
        np.testing.assert_allclose(logits_now(fork), expected, atol=1e-4)


def test_a_fork_shares_the_memory_of_the_prefix():
    session = Session(MODEL)
    session.extend("abcdefgh")
    mx.eval(session.prefill())
    before = mx.get_active_memory()
    forks = [session.fork() for _ in range(20)]
    mx.eval([layer.state for fork in forks for layer in fork.cache])
    assert mx.get_active_memory() - before < session.nbytes


def test_a_shared_beginning_is_kept():
    session = Session(MODEL)
    session.generate("abcdefgh", max_tokens=1, seed=0)
    before = session.computed
    session.reset_to("abcdexy")
    session.prefill()
    assert session.computed - before == 2
    session.reset_to("abcdexy")  # all of it: only the last token's logits are wanted again
    session.prefill()
    assert session.computed - before == 3


def test_rewind_recomputes_nothing_while_the_cache_has_it():
    session = Session(MODEL)
    session.extend("abcdefghij")
    session.prefill()
    mark = session.mark()
    session.generate("klm", max_tokens=2, seed=0)
    session.rewind(to=mark)
    assert session.tokens == list(range(10)) and session.processed == 10
    before = session.computed
    session.generate("kl", max_tokens=1, seed=0)
    assert session.computed - before == 2


def test_after_a_slide_the_logits_are_a_fresh_models_on_the_kept_tokens():
    tokens = [(7 * i) % VOCABULARY for i in range(4 * N)]
    session = Session(MODEL, keep=3, overflow="slide", prefill_chunk=5)
    seen = 0
    for n in range(1, len(tokens) + 1):
        session.extend(tokens[n - 1 : n])
        logits = logits_now(session)
        if session.slides > seen:
            seen = session.slides
            np.testing.assert_allclose(logits, plain_logits(tokens[:n], keep=3), atol=1e-4)
    assert seen == 1 + (4 * N - N - 1) // (N // 2)


def test_a_slide_may_begin_at_a_turn():
    session = Session(MODEL, keep=2, overflow="slide")
    session.plan_slide(keep=2, points=[2, 6, 12, 15])
    session.extend([i % VOCABULARY for i in range(N + 1)])
    np.testing.assert_allclose(logits_now(session), plain_logits([0, 1, 12, 13, 14, 15, 16]), atol=1e-4)
    assert session.slide is not None and session.slide.start == 12


def test_a_long_prompt_costs_no_more_than_what_stays_of_it():
    session = Session(MODEL, overflow="slide")
    session.extend([i % VOCABULARY for i in range(50 * N)])
    session.prefill()
    assert session.computed <= N


def test_an_interrupted_prefill_leaves_a_session_that_goes_on():
    tokens = [(5 * i) % VOCABULARY for i in range(40)]
    for at in (0, 2, 6, 8, 10):

        def stop_at(done: int, total: int, at: int = at) -> None:
            if done >= at:
                raise KeyboardInterrupt

        session = Session(MODEL, overflow="slide", prefill_chunk=2)
        session.extend(tokens)
        with pytest.raises(KeyboardInterrupt):
            session.prefill(stop_at)
        np.testing.assert_allclose(logits_now(session), plain_logits(tokens), atol=1e-4)


def test_what_cannot_be_done_is_said():
    session = Session(MODEL)
    session.extend("abc")
    with pytest.raises(OptionError, match="the session has 3 tokens"):
        session.rewind(4)
    with pytest.raises(OptionError, match="either a number of tokens or a mark"):
        session.rewind()
    with pytest.raises(OptionError, match="is an option of the whole session"):
        session.generate("a", keep=3)
    with pytest.raises(ContextError, match="17 tokens"):
        session.extend([0] * (N - 2))
    assert session.tokens == [0, 1, 2]
