"""One answer, asked for step by step from changing threads: what a thread pool does with a generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any

import mlx.core as mx
import pytest

import mlxgen
from mlxgen.chat.conversation import Conversation
from mlxgen.chat.templates import choose_template
from mlxgen.generation.request import check_options
from mlxgen.generation.session import Session

from ..conftest import needs_compiler

PROMPT = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
N_THREADS = 3


def halved(tokens: mx.array, logits: mx.array) -> mx.array:
    """A processor whose result depends on all tokens so far."""
    return logits / (1 + mx.sum(tokens) % 2)


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Any]]:
    """elsewhere(function, *arguments): call it, each time in another thread than the time before."""
    pools = [ThreadPoolExecutor(1) for _ in range(N_THREADS)]
    turn = cycle(pools)
    yield lambda function, *arguments: next(turn).submit(function, *arguments).result()
    for pool in pools:
        pool.shutdown()


def drained(steps: Iterator[Any], elsewhere: Callable[..., Any]) -> list[Any]:
    return list(iter(lambda: elsewhere(next, steps, None), None))


RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "a seed": {},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.2},
    "bias": {"logit_bias": {5: 2.0}},
    "bans": {"no_repeat_ngram": 2, "bad_words": [[5], [7, 8]], "min_tokens": 3, "suppress_tokens": [9]},
    "logprobs": {"logprobs": 3},
    "a processor": {"logits_processors": [halved]},
    "rotating": {"max_kv_size": 7, "keep": 2, "prefill_chunk": 4},
    "sliding": {"overflow": "slide", "keep": 2},
}
GUESSED = {
    "lookahead": {"lookahead": True, "frequency_penalty": 0.2},
    "lookahead, rotating": {"lookahead": True, "max_kv_size": 7, "keep": 2, "temperature": 0},
    "lookahead, sliding": {"lookahead": True, "overflow": "slide", "temperature": 0},
}


@pytest.mark.parametrize("name", [*RULES, *GUESSED])
def test_a_streams_steps_may_be_asked_for_from_any_thread(short_model, elsewhere, name):
    options = {"max_tokens": 22, "seed": 3, "ignore_eos": True, **{**RULES, **GUESSED}[name]}
    expected = mlxgen.generate(short_model, PROMPT, **options).tokens
    steps = elsewhere(lambda: mlxgen.stream(short_model, PROMPT, **options))
    assert [step.token for step in drained(steps, elsewhere)] == expected


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_with_a_draft_model(short_model, draft_model, elsewhere, temperature):
    options = {"max_tokens": 22, "seed": 3, "ignore_eos": True, "temperature": temperature, "draft": draft_model}
    expected = mlxgen.generate(short_model, PROMPT, **options).tokens
    steps = elsewhere(lambda: mlxgen.stream(short_model, PROMPT, **options))
    assert [step.token for step in drained(steps, elsewhere)] == expected


@needs_compiler
def test_with_the_compiled_step(short_model, elsewhere, monkeypatch):
    monkeypatch.setattr("mlxgen.device.compiles_steps", lambda: True)
    test_a_streams_steps_may_be_asked_for_from_any_thread(short_model, elsewhere, "penalties")


@pytest.mark.parametrize("name", RULES)
def test_a_batch(short_model, elsewhere, name):
    prompts = [PROMPT, [7, 8], mlxgen.Prompt([9], max_tokens=4), [5, 5, 5], PROMPT[:3]]
    options = {"max_tokens": 17, "seed": 3, "ignore_eos": True, "batch_size": 2, "num_samples": 2, **RULES[name]}
    expected = [answer.tokens for answer in mlxgen.batch(short_model, prompts, **options)]
    answers = elsewhere(lambda: mlxgen.batch(short_model, prompts, **options))
    assert [answer.tokens for answer in drained(answers, elsewhere)] == expected


@pytest.mark.parametrize(
    "kind",
    [{}, {"max_kv_size": 9, "keep": 2, "prefill_chunk": 4}, {"max_kv_size": 9}, {"overflow": "slide", "keep": 3}],
    ids=str,
)
@pytest.mark.parametrize("guesses", [{}, {"lookahead": True}], ids=str)
def test_a_sessions_calls_may_come_from_any_thread(short_model, elsewhere, tmp_path, kind, guesses):
    """Answers of one token too, after which nobody has asked for what the last chunk left in the cache."""

    def talk(call: Callable[..., Any]) -> list[int]:
        session = call(lambda: Session(short_model, **kind))
        options = {"seed": 1, "ignore_eos": True, **guesses}
        call(lambda: session.extend(PROMPT))
        call(lambda: session.generate(max_tokens=1, **options))
        call(lambda: session.generate([4, 5], max_tokens=1, **options))
        steps = call(lambda: session.stream([1, 2, 3], max_tokens=6, **options))
        for _ in range(3):
            call(next, steps)
        call(steps.close)
        call(lambda: session.rewind(1))
        fork = call(session.fork)
        call(lambda: session.generate([9], max_tokens=1, **options))
        path = call(lambda: session.save(tmp_path / "session"))
        loaded = call(lambda: Session.load(path, short_model))
        call(lambda: fork.generate([8], max_tokens=2, **options))
        call(lambda: loaded.generate(max_tokens=2, **options))
        return [*session.tokens, *fork.tokens, *loaded.tokens]

    assert talk(elsewhere) == talk(lambda function, *arguments: function(*arguments))


def test_a_conversation(build_model, elsewhere):
    model = build_model(n_positions=64)

    def talk(call: Callable[..., Any]) -> list[str]:
        request = check_options(max_tokens=6, ignore_eos=True, frequency_penalty=0.3)
        chat = Conversation(
            Session(model, overflow="slide"), choose_template(model, "plain"), seed=1, system="Be", request=request
        )

        def run(begin: Callable[[], Iterator[Any]]) -> str:
            steps = call(begin)
            return "".join(step.text for step in iter(lambda: call(next, steps, None), None))

        said = [run(lambda: chat.say("far")), run(lambda: chat.say("away")), run(chat.retry)]
        call(chat.undo)
        return [*said, run(lambda: chat.say("once")), run(lambda: chat.edit("king"))]

    assert talk(elsewhere) == talk(lambda function, *arguments: function(*arguments))
