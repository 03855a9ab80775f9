"""The loop: one step after another, why it ends, and where it leaves the session."""

from __future__ import annotations

import math
import threading

import mlx.core as mx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import MlxgenError, NumericError, OptionError
from mlxgen.generation import loop
from mlxgen.generation.answer import generate, stream
from mlxgen.generation.batching import batch
from mlxgen.generation.session import Session
from mlxgen.model import Model
from mlxgen.sampling.chooser import Choice

from ..support import oracles

GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def prompt():
    return [17, 200, 3]


@pytest.fixture(scope="module")
def greedy30(model, prompt):
    return oracles.numpy_greedy(model, prompt, 30)


def test_greedy_tokens_are_those_of_whole_passes_by_numpy(model, prompt, greedy30):
    assert generate(model, prompt, max_tokens=30, **GREEDY).tokens == greedy30


@pytest.mark.parametrize(("max_kv_size", "keep"), [(1, 0), (4, 0), (4, 3), (9, 2), (40, 5)])
def test_greedy_tokens_with_a_rotating_cache_are_those_of_the_windowed_mask(model, max_kv_size, keep):
    prompt = [9, 8, 7, 6, 5, 4]
    got = generate(model, prompt, max_tokens=20, max_kv_size=max_kv_size, keep=keep, prefill_chunk=4, **GREEDY)
    assert got.tokens == oracles.numpy_greedy(model, prompt, 20, max_kv_size, keep)


def test_each_step_says_how_long_context_and_cache_are(model, prompt):
    for m, step in enumerate(stream(model, prompt, max_tokens=12, **GREEDY), start=1):
        assert step.index == m - 1
        assert step.context_length == 3 + m
        assert step.cache_length == 3 + m - 1
        assert step.finish_reason == ("length" if m == 12 else None)


def test_a_rotating_cache_says_its_own_length(model, prompt):
    lengths = [step.cache_length for step in stream(model, prompt, max_tokens=8, max_kv_size=5, keep=1, **GREEDY)]
    assert lengths == [3, 4, 5, 5, 5, 5, 5, 5]


@pytest.mark.parametrize("n", [1, 2, 9])
def test_after_n_prompt_and_m_chosen_tokens_the_cache_holds_n_plus_m_minus_1(model, n):
    prompt = list(range(10, 10 + n))
    for m in (1, 2, 7):
        session = Session(model)
        session.extend(prompt)
        assert len(list(session.stream(**{"max_tokens": m, **GREEDY}))) == m
        assert session.cache_length == n + m - 1
        assert session.processed == n + m - 1
        assert len(session.tokens) == n + m


@pytest.mark.parametrize("kind", [{}, {"max_kv_size": 6, "keep": 2}, {"max_kv_size": 4}, {"max_kv_size": 100}])
@pytest.mark.parametrize("leave_after", [1, 2, 5, 11])
def test_a_caller_that_leaves_early_can_go_on_as_if_it_had_not(model, prompt, kind, leave_after):
    whole = generate(model, prompt, max_tokens=25, **kind, **GREEDY).tokens
    session = Session(model, **kind)
    session.extend(prompt)
    steps = session.stream(**{"max_tokens": 25, **GREEDY})
    got = [next(steps).token for _ in range(leave_after)]
    steps.close()
    assert session.tokens == prompt + got
    assert session.processed == len(session.tokens) - 1
    assert session.cache[0].offset == len(session.tokens) - 1
    got += [step.token for step in session.stream(**{"max_tokens": 25 - leave_after, **GREEDY})]
    assert got == whole


@pytest.mark.parametrize("kind", [{}, {"max_kv_size": 6, "keep": 2}, {"max_kv_size": 4}])
def test_many_short_answers_are_one_long_one(model, prompt, kind):
    whole = generate(model, prompt, max_tokens=24, **kind, **GREEDY).tokens
    session = Session(model, **kind)
    session.extend(prompt)
    got = [step.token for _ in range(8) for step in session.stream(**{"max_tokens": 3, **GREEDY})]
    assert got == whole


def test_an_end_token_stops_without_a_trip_that_anyone_can_see(build_model, prompt, greedy30):
    first = greedy30.index(greedy30[5])
    model = build_model()
    model = Model(model.name, model.config, model.decoder, model.tokenizer, frozenset({greedy30[5]}))
    session = Session(model)
    session.extend(prompt)
    steps = list(session.stream(max_tokens=30, temperature=0))
    assert [step.token for step in steps] == greedy30[: first + 1]
    assert steps[-1].finish_reason == "stop"
    assert steps[-1].text == ""
    assert session.tokens == prompt + greedy30[: first + 1]
    assert session.cache_length == len(session.tokens) - 1
    went_on = [step.token for step in session.stream(**{"max_tokens": 5, **GREEDY})]
    assert went_on == greedy30[first + 1 : first + 6]


def test_several_end_tokens_all_end(build_model, prompt, greedy30):
    model = build_model()
    ends = frozenset({greedy30[9], greedy30[6]})
    model = Model(model.name, model.config, model.decoder, model.tokenizer, ends)
    got = generate(model, prompt, max_tokens=30, temperature=0)
    assert got.tokens == greedy30[: min(greedy30.index(token) for token in ends) + 1]
    assert got.finish_reason == "stop"
    assert generate(model, prompt, max_tokens=30, temperature=0, ignore_eos=True).tokens == greedy30


def test_a_prompt_of_3_on_a_table_of_32_gives_29_tokens(build_model, prompt):
    model = build_model(n_positions=32)
    got = generate(model, prompt, max_tokens=100, **GREEDY)
    assert len(got.tokens) == 29
    assert got.finish_reason == "context"
    assert got.tokens == oracles.numpy_greedy(model, prompt, 29)


def test_the_limit_and_the_table_reached_together_count_as_the_limit(build_model, prompt):
    assert generate(build_model(n_positions=32), prompt, max_tokens=29, **GREEDY).finish_reason == "length"


def test_a_prompt_that_fills_the_table_leaves_no_room(build_model):
    model = build_model(n_positions=32)
    full = generate(model, list(range(32)), max_tokens=5, **GREEDY)
    assert (full.tokens, full.text, full.finish_reason) == ([], "", "context")
    last = generate(model, list(range(31)), max_tokens=5, **GREEDY)
    assert len(last.tokens) == 1
    assert last.finish_reason == "context"


@pytest.mark.parametrize("keep", [0, 3])
@pytest.mark.parametrize("n_prompt", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("chunk", [512, 5, 1])
def test_sliding_goes_on_without_end_and_each_token_is_a_fresh_models(build_model, keep, n_prompt, chunk):
    """Every token by NumPy from the positions that the rule leaves; the split of the prompt changes nothing."""
    model = build_model(n_positions=16)
    context = np.random.default_rng(n_prompt).integers(0, 279, n_prompt).tolist()
    got = generate(model, context, max_tokens=30, overflow="slide", keep=keep, prefill_chunk=chunk, **GREEDY)
    assert got.tokens == oracles.numpy_greedy(model, context, 30, keep=keep, slide=True)
    assert got.finish_reason == "length"


def test_logits_that_are_not_numbers_end_with_an_error_that_names_the_step(build_model):
    for bad in (math.nan, math.inf, -math.inf):
        model = build_model()
        model.decoder.model.wte.weight[7, 0] = bad  # token 7's logit, and whatever reads token 7
        with pytest.raises(NumericError, match="step 0: the logits are not finite"):
            generate(model, [1, 2], max_tokens=5)


def test_the_error_names_a_later_step_and_the_session_stays_whole(build_model, prompt, greedy30):
    model = build_model()
    model.decoder.model.wpe.weight[5] = math.nan  # read with the third chosen token: step 3's logits
    session = Session(model)
    session.extend(prompt)
    seen = []
    with pytest.raises(NumericError, match="step 3: the logits are not finite"):
        for step in session.stream(**{"max_tokens": 9, **GREEDY}):
            seen.append(step.token)
    assert seen == greedy30[:3]
    assert session.tokens == prompt + seen
    assert session.processed <= len(session.tokens)
    assert session.cache[0].offset == session.processed


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_processor_that_spoils_the_logits_is_told_so(model, prompt, bad):
    def spoil(tokens, logits):
        return logits if len(tokens) < 5 else logits + bad

    for temperature in (0, 0.8):
        with pytest.raises(NumericError, match="step 2: logits_processors"):
            generate(model, prompt, logits_processors=[spoil], temperature=temperature, max_tokens=9)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda logits: np.array(logits), "a value of type numpy.ndarray"),
        (lambda logits: torch.tensor(np.array(logits)), "a value of type torch.Tensor"),
        (lambda logits: logits[0], r"an MLX array of shape \[282\]"),
        (lambda logits: logits[:, :5], r"an MLX array of shape \[1, 5\]"),
        (lambda logits: None, "a value of type NoneType"),
    ],
)
def test_a_processor_that_returns_something_else_is_told_so(model, prompt, change, told):
    for options in ({"temperature": 0}, {"temperature": 0.8}, {"lookahead": True}):
        with pytest.raises(OptionError, match=rf"an MLX array of shape \[1, 282\], not {told}"):
            generate(model, prompt, logits_processors=[lambda tokens, logits: change(logits)], **options)
    with pytest.raises(OptionError, match=told):
        list(batch(model, [prompt], logits_processors=[lambda tokens, logits: change(logits)]))


def test_rules_that_leave_no_token_are_an_error(model, prompt):
    every = dict.fromkeys(range(model.config.vocab_size), -math.inf)
    with pytest.raises(NumericError, match="step 0: logit_bias removed every token"):
        generate(model, prompt, logit_bias=every)


@pytest.mark.parametrize("kind", [{}, {"max_kv_size": 4}])
def test_a_processor_that_fails_leaves_the_session_whole(model, prompt, kind):
    calls = []

    def fail(tokens, logits):
        calls.append(len(tokens))
        if len(calls) == 4:
            raise RuntimeError("as the caller wrote it")
        return logits

    whole = generate(model, prompt, max_tokens=12, **kind, **GREEDY).tokens
    session = Session(model, **kind)
    session.extend(prompt)
    got = []
    with pytest.raises(RuntimeError, match="as the caller"):
        for step in session.stream(**{"max_tokens": 12, "logits_processors": [fail], **GREEDY}):
            got.append(step.token)
    assert session.tokens == prompt + got
    assert session.cache[0].offset == session.processed <= len(session.tokens)
    got += [step.token for step in session.stream(**{"max_tokens": 12 - len(got), **GREEDY})]
    assert got == whole


def test_processors_have_mlx_lms_signature_and_run_first(model, prompt):
    from mlx_lm.sample_utils import make_logits_processors

    seen = []

    def watch(tokens, logits):
        assert isinstance(tokens, mx.array)
        assert tokens.ndim == 1
        assert logits.shape == (1, model.config.vocab_size)
        assert logits.dtype == mx.float32
        seen.append(tokens)
        return logits

    (theirs,) = make_logits_processors(repetition_penalty=1.7, repetition_context_size=1000)
    got = generate(model, prompt, max_tokens=10, logits_processors=[watch, theirs], **GREEDY)
    assert got.tokens == generate(model, prompt, max_tokens=10, repetition_penalty=1.7, **GREEDY).tokens
    assert [tokens.tolist() for tokens in seen] == [prompt + got.tokens[:n] for n in range(10)]


def test_a_processor_runs_before_the_bias(model, prompt):
    def only(tokens, logits):
        return mx.where(mx.arange(logits.shape[-1]) == 5, logits, -mx.inf)

    got = generate(model, prompt, max_tokens=3, logits_processors=[only], logit_bias={6: 1e9}, **GREEDY)
    assert got.tokens == [5, 5, 5]


@settings(max_examples=25)
@given(st.integers(0, 2**63 - 1), st.sampled_from([{}, {"max_kv_size": 7, "keep": 1}, {"top_p": 0.9, "min_p": 0.01}]))
def test_the_same_seed_gives_the_same_tokens_streamed_or_not_whatever_the_chunks(model, seed, kind):
    prompt = [5, 6, 7, 8, 9]
    whole = generate(model, prompt, max_tokens=8, seed=seed, **kind)
    pieces = list(stream(model, prompt, max_tokens=8, seed=seed, prefill_chunk=2, **kind))
    assert [step.token for step in pieces] == whole.tokens
    assert "".join(step.text for step in pieces) == whole.text
    assert whole.seed == seed


def test_randomness_elsewhere_changes_nothing(model, prompt):
    first = generate(model, prompt, max_tokens=10, seed=3).tokens
    mx.random.seed(99)
    mx.random.normal((5,))
    assert generate(model, prompt, max_tokens=10, seed=3).tokens == first
    assert any(generate(model, prompt, max_tokens=10, seed=seed).tokens != first for seed in range(4, 8))


def test_the_logprobs_sum_to_the_log_probability_of_the_text(model, prompt):
    got = generate(model, prompt, max_tokens=20, temperature=1.3, top_k=None, seed=5, logit_bias={4: 2.0})
    context = prompt + got.tokens
    rows = oracles.log_softmax(oracles.numpy_logits(oracles.parameters(model.decoder), model.config, context))
    expected = [rows[at - 1, context[at]] for at in range(len(prompt), len(context))]
    np.testing.assert_allclose(got.logprobs, expected, rtol=0, atol=1e-4)
    assert sum(got.logprobs) == pytest.approx(sum(expected), abs=1e-3)


def test_candidates_are_the_models_best_and_say_what_the_rules_kept(model, prompt):
    rules = {"temperature": 0.7, "top_k": 3, "seed": 1}
    steps = list(stream(model, prompt, max_tokens=6, logprobs=5, **rules))
    weights, context = oracles.parameters(model.decoder), list(prompt)
    for step in steps:
        logits = oracles.numpy_logits(weights, model.config, context)[-1]
        best = np.argsort(-logits)[:5]
        assert [c.token for c in step.candidates] == best.tolist()
        np.testing.assert_allclose([c.probability for c in step.candidates], oracles.softmax(logits)[best], atol=1e-5)
        assert [c.kept for c in step.candidates] == [True] * 3 + [False] * 2
        ruled = oracles.softmax(logits[best[:3]] / 0.7)
        np.testing.assert_allclose([c.rule_probability for c in step.candidates], [*ruled, 0, 0], atol=1e-4)
        assert [c.text for c in step.candidates] == [model.tokenizer.decode([c.token]) for c in step.candidates]
        assert step.token in best[:3]
        context.append(step.token)


def test_greedy_keeps_one_candidate(model, prompt):
    for step in stream(model, prompt, max_tokens=4, logprobs=3, **GREEDY):
        assert [c.rule_probability for c in step.candidates] == [1.0, 0.0, 0.0]
        assert step.candidates[0].token == step.token
        assert math.log(step.candidates[0].probability) == pytest.approx(step.logprob, abs=1e-5)


def test_more_candidates_than_tokens_are_all_tokens(model, prompt):
    (step,) = stream(model, prompt, max_tokens=1, logprobs=10**6, seed=0)
    assert len(step.candidates) == model.config.vocab_size
    assert sum(c.probability for c in step.candidates) == pytest.approx(1, abs=1e-5)
    assert sum(c.rule_probability for c in step.candidates) == pytest.approx(1, abs=1e-5)


def test_progress_counts_the_prompt(model):
    calls = []
    generate(
        model, list(range(20)), max_tokens=1, prefill_chunk=8, progress=lambda *numbers: calls.append(numbers), seed=0
    )
    assert calls == [(0, 20), (8, 20), (16, 20), (20, 20)]


def test_the_loop_runs_in_any_thread(model, prompt, greedy30):
    got = []
    thread = threading.Thread(target=lambda: got.extend(generate(model, prompt, max_tokens=30, **GREEDY).tokens))
    thread.start()
    thread.join(60)
    assert got == greedy30


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"max_tokens": 2.5},
        {"max_tokens": True},
        {"logprobs": -1},
        {"logprobs": "many"},
        {"seed": -1},
        {"temperature": -1},
        {"top_k": 0},
        {"top_p": 0},
        {"stop": ""},
        {"stop": ["a", ""]},
        {"stop": [3]},
        {"stop": 3},
        {"max_kv_size": 0},
        {"max_kv_size": 2.5},
        {"max_kv_size": 4, "keep": 4},
        {"keep": -1},
        {"keep": 1.5},
        {"keep": 32, "overflow": "slide"},
        {"overflow": "wrap"},
        {"prefill_chunk": 0},
        {"prefill_chunk": 1.5},
        {"logit_bias": {5000: 1.0}},
        {"logits_processors": 3},
        {"tempreature": 1},
    ],
    ids=str,
)
def test_wrong_options_are_told_at_once_in_one_line(model, wrong):
    for way in (generate, stream):  # stream() itself, not its first step
        with pytest.raises(OptionError) as caught:
            way(model, "Far away", **wrong)
        assert "\n" not in str(caught.value)
        assert next(iter(wrong)).split("_")[0] in str(caught.value)


def test_all_errors_are_one_family():
    assert issubclass(NumericError, MlxgenError)
    assert issubclass(OptionError, MlxgenError)


def test_the_device_has_the_next_step_before_python_waits_for_the_last(model, monkeypatch):
    """The double-buffered loop; with lookahead too, as long as it has nothing to guess."""
    sent, waits = [], []
    send, wait = mx.async_eval, Choice.read

    def sending(*arrays):
        if len(arrays) > 1:  # the prefill sends the cache alone
            sent.append(arrays)
        send(*arrays)

    def waiting(choice):
        waits.append(len(sent) - len(waits))  # steps sent and not yet read
        return wait(choice)

    monkeypatch.setattr(mx, "async_eval", sending)
    monkeypatch.setattr(Choice, "read", waiting)
    for guesses in ({}, {"lookahead": True}):
        sent.clear()
        waits.clear()
        got = generate(model, [1, 2, 3], max_tokens=20, seed=1, top_k=None, temperature=3.0, ignore_eos=True, **guesses)
        assert got.guesses == 0
        assert waits == [2] * 19 + [1]


@pytest.mark.parametrize("guesses", [{}, {"lookahead": True}])
def test_buffers_are_given_back_as_passes_go_by(model, monkeypatch, guesses):
    cleared = []
    monkeypatch.setattr(loop, "CLEAR_EVERY", 3)
    monkeypatch.setattr(mx, "clear_cache", lambda: cleared.append(1))
    got = generate(model, [1, 2, 3], max_tokens=60, **GREEDY, **guesses)
    assert len(cleared) >= (len(got.tokens) - got.accepted) // 3 - 1 > 2
