"""Guesses change how many passes a text takes, and nothing else: whoever guesses, and however well."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen.errors import OptionError
from mlxgen.generation.cached_context import MOST_GUESSES
from mlxgen.generation.loop import steps
from mlxgen.generation.model_bans import model_bans
from mlxgen.generation.request import check_options
from mlxgen.generation.session import Session
from mlxgen.sampling.chooser import Chooser, Guess
from mlxgen.sampling.samplers import Sampling

from ..support.models import letter_tokenizer, tiny_gpt2

CACHES = [
    {},
    {"max_kv_size": 5},
    {"max_kv_size": 9, "keep": 3},
    {"overflow": "slide"},
    {"overflow": "slide", "keep": 5},
    {"overflow": "slide", "keep": 2, "max_kv_size": 7},
]
RULES = [
    {"temperature": 0},
    {"temperature": 1.0, "top_k": None},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.2, "repetition_penalty": 1.3, "frequency_penalty": 0.2, "logit_bias": {3: 2.0}},
    {"temperature": 0, "presence_penalty": 0.5},
    {"temperature": 0.9, "no_repeat_ngram": 3, "bad_words": [[5], [7, 8]], "typical_p": 0.9},
]


class Told:
    """Guesses what the test says: partly what will come, partly not."""

    def __init__(self, coming, wrong_every, length, session):
        self.coming, self.wrong_every, self.length, self.session = coming, wrong_every, length, session
        self.learned = []

    def guess(self, token, known, most, choose):
        at = len(self.session.tokens) + (0 if known else 1)
        guesses = self.coming[at : at + min(self.length, most)]
        guesses = [g if (at + n) % self.wrong_every else (g + 1) % 200 for n, g in enumerate(guesses)]
        return [Guess(mx.array([guess], dtype=token.dtype)) for guess in guesses]

    def learn(self, guesses, right):
        self.learned.append((guesses, right))


def told_steps(model, prompt, plain, cache, rules, wrong_every, length, max_tokens, seed=1, **more):
    session = Session(model, **cache)
    session.extend(prompt)
    sampling, size = Sampling(**rules), model.config.vocab_size
    choose = Chooser(sampling, seed, session.tokens, size, bans=model_bans(sampling, model, ()), candidates=2)
    told = Told([*prompt, *(step.token for step in plain)], wrong_every, length, session)
    request = check_options(**{"max_tokens": max_tokens, "ignore_eos": True, **more})
    return session, told, steps(session, request, choose, told)


def plain_steps(model, prompt, cache, rules, max_tokens, seed=1):
    session = Session(model, **cache)
    session.extend(prompt)
    options = {"max_tokens": max_tokens, "seed": seed, "logprobs": 2, "ignore_eos": True, **rules}
    return session, list(session.stream(**options))


def same(got, expected):
    for one, two in zip(got, expected, strict=True):
        for name in ("index", "token", "text", "context_length", "cache_length", "finish_reason"):
            assert getattr(one, name) == getattr(two, name), name
        assert one.logprob == pytest.approx(two.logprob, abs=1e-4)
        assert [c.token for c in one.candidates] == [c.token for c in two.candidates]


@settings(max_examples=120)
@given(
    prompt=st.lists(st.integers(0, 278), min_size=1, max_size=30),
    cache=st.sampled_from(CACHES),
    rules=st.sampled_from(RULES),
    wrong_every=st.integers(1, 9),
    length=st.integers(1, MOST_GUESSES),
    max_tokens=st.integers(1, 70),
    data=st.data(),
)
def test_right_and_wrong_guesses_give_the_steps_of_the_plain_loop(
    short_model, prompt, cache, rules, wrong_every, length, max_tokens, data
):
    session, plain = plain_steps(short_model, prompt, cache, rules, max_tokens)
    guessing, told, loop = told_steps(short_model, prompt, plain, cache, rules, wrong_every, length, max_tokens)
    leave = data.draw(st.integers(1, len(plain)) if plain else st.just(0))
    got = []
    for step in loop:
        got.append(step)
        if len(got) == leave:
            loop.close()
    same(got, plain[:leave])
    assert guessing.tokens == session.tokens[: len(prompt) + leave]
    if leave:
        assert guessing.processed == len(guessing.tokens) - 1
    assert sum(step.guessed for step in got) <= sum(right for _, right in told.learned) + MOST_GUESSES
    if leave == len(plain) and plain:  # both sessions go on alike
        assert guessing.cache_length == session.cache_length
        assert guessing.cache[0].offset == session.cache[0].offset
        if guessing.room is None or guessing.room > 0:
            np.testing.assert_allclose(np.array(guessing.prefill()), np.array(session.prefill()), atol=1e-4)


def test_right_guesses_save_passes_and_wrong_ones_are_counted(short_model):
    passes = []
    _, plain = plain_steps(short_model, [1, 2], {}, {"temperature": 0}, 29)
    for wrong_every in (1, 1000):
        _, told, loop = told_steps(short_model, [1, 2], plain, {}, {"temperature": 0}, wrong_every, 7, 29)
        got = list(loop)
        same(got, plain)
        passes.append(len(got) - sum(step.guessed for step in got))
        assert sum(step.guesses for step in got) >= sum(step.guessed for step in got)
        assert all(right == (0 if wrong_every == 1 else guesses) for guesses, right in told.learned)
    assert passes[0] == 29 and passes[1] <= 5


@pytest.mark.parametrize("how", ["stop text", "end token"])
@pytest.mark.parametrize("length", [1, 4, 15])
def test_an_answer_ends_in_the_midst_of_guesses_as_it_would_without(short_model, how, length):
    _, plain = plain_steps(short_model, [7, 8], {}, {"temperature": 0}, 20)
    more = {"stop": [plain[6].text]}
    if how == "end token":
        short_model = replace(short_model, end_tokens=frozenset({plain[6].token}))
        more = {"ignore_eos": False}
    session, _, loop = told_steps(short_model, [7, 8], plain, {}, {"temperature": 0}, 1000, length, 20, **more)
    got = list(loop)
    first = next(n for n, step in enumerate(plain) if step.token == plain[6].token)
    assert [step.token for step in got] == [step.token for step in plain[: first + 1]]
    assert got[-1].finish_reason == "stop" and got[-1].text == ""
    assert session.processed == len(session.tokens) - 1 == session.cache_length


def test_a_processor_is_called_as_without_guesses(short_model):
    calls = []

    def processor(tokens, logits):
        calls.append(tokens.tolist())
        return logits

    for guesses in ({}, {"lookahead": True}, {"draft": short_model}):
        calls.clear()
        answer = mlxgen.generate(
            short_model, [3, 1, 4], max_tokens=20, seed=2, logits_processors=[processor], **guesses
        )
        contexts = [[3, 1, 4, *answer.tokens[:n]] for n in range(len(answer.tokens))]
        assert calls[: len(contexts)] == contexts


def test_a_processor_that_fails_leaves_the_session_whole(short_model):
    def fail(tokens, logits):
        if len(tokens) == 12:
            raise RuntimeError("as the caller wrote it")
        return logits

    _, plain = plain_steps(short_model, [3], {}, {"temperature": 0}, 20)
    session = Session(short_model)
    session.extend([3])
    model_size = short_model.config.vocab_size
    choose = Chooser(Sampling(temperature=0), 1, session.tokens, model_size, processors=[fail])
    told = Told([3, *(step.token for step in plain)], 1000, 5, session)
    with pytest.raises(RuntimeError, match="as the caller"):
        list(steps(session, check_options(max_tokens=20, ignore_eos=True), choose, told))
    assert session.tokens == [3, *(step.token for step in plain[: len(session.tokens) - 1])]
    assert session.processed == session.cache[0].offset <= len(session.tokens)
    fresh = Session(short_model)
    fresh.extend(session.tokens)
    np.testing.assert_allclose(np.array(session.prefill()), np.array(fresh.prefill()), atol=1e-4)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32), cache=st.sampled_from(CACHES), rules=st.sampled_from(RULES),
    way=st.sampled_from(["lookahead", "other", "itself"]),
    prompt=st.lists(st.integers(0, 4), min_size=1, max_size=20),
)  # fmt: skip
def test_lookahead_keeps_every_text_and_a_draft_every_greedy_one(
    short_model, draft_model, seed, cache, rules, way, prompt
):
    guesses = {"lookahead": {"lookahead": True}, "other": {"draft": draft_model}, "itself": {"draft": short_model}}[way]
    if way != "lookahead":
        rules = {**rules, "temperature": 0}
    options = {"max_tokens": 50, "seed": seed, "ignore_eos": True, "logprobs": 1, **cache, **rules}
    plain = mlxgen.generate(short_model, prompt, **options)
    got = mlxgen.generate(short_model, prompt, **options, **guesses)
    assert (got.tokens, got.text, got.finish_reason) == (plain.tokens, plain.text, plain.finish_reason)
    np.testing.assert_allclose(got.logprobs, plain.logprobs, atol=1e-4)
    assert 0 <= got.accepted <= got.guesses and (plain.guesses, plain.tokens_per_pass) == (0, 1)


def test_guesses_that_cannot_be_are_refused_before_any_work(model, short_model):
    other = tiny_gpt2(tokenizer=letter_tokenizer()).model()
    with pytest.raises(OptionError, match="a different vocabulary"):
        mlxgen.generate(model, "a", draft=other)
    with pytest.raises(OptionError, match="draft must be a model"):
        mlxgen.generate(model, "a", draft="gpt2")
    with pytest.raises(OptionError, match="give one of them"):
        mlxgen.generate(model, "a", draft=model, lookahead=True)
    from mlx_lm.models.cache import KVCache

    with pytest.raises(OptionError, match="leave out cache="):
        Session(model, cache=[KVCache() for _ in model.decoder.layers]).generate("a", lookahead=True)
    for guesses in ({"lookahead": True}, {"draft": short_model}):
        with pytest.raises(OptionError, match="leave it out of a batch"):
            list(mlxgen.batch(model, ["a"], **guesses))
        with pytest.raises(OptionError, match="leave it out of a batch"):
            list(mlxgen.batch(model, [mlxgen.Prompt("a", **guesses)]))
        with pytest.raises(OptionError, match="leave it out of a trace"):
            mlxgen.trace(model, "a", **guesses)
