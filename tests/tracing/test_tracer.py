"""The trace: the same text as generate, and numbers that independent ways of counting give as well."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mlxgen
from mlxgen.tracing.record import Trace

from ..support import oracles
from ..support.models import tiny_gpt2

PROMPT = "Far away the king and the frog"
SETTINGS: dict[str, dict[str, Any]] = {
    "the defaults": {},
    "greedy": {"temperature": 0},
    "top-p and min-p": {"temperature": 1.3, "top_k": None, "top_p": 0.7, "min_p": 0.02},
    "penalties and bias": {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "logit_bias": {5: 2.0, 7: -math.inf}},
    "bans": {"no_repeat_ngram": 2, "bad_words": ["e", [5]], "min_tokens": 9, "suppress_tokens": [97, 98]},
    "cutoffs": {"temperature": 1.5, "top_k": None, "typical_p": 0.8, "epsilon_cutoff": 0.001, "eta_cutoff": 0.01},
    "nothing cut": {"temperature": 2.0, "top_k": None},
    "a processor": {"logits_processors": [lambda tokens, logits: logits - 0.5 * logits]},
    "a rotating cache": {"max_kv_size": 16, "keep": 3},
    "a sliding context": {"overflow": "slide", "keep": 2, "max_tokens": 80},
    "a stop text": {"stop": "a", "temperature": 1.5, "top_k": None},
}


def traced(model: mlxgen.Model, prompt: str = PROMPT, steps: int = 12, **options: Any) -> Trace:
    options.setdefault("ignore_eos", True)
    return mlxgen.trace(model, prompt, steps, **{"seed": 5, **options})


@pytest.mark.parametrize("name", SETTINGS)
def test_the_text_is_that_of_generate(model: mlxgen.Model, name: str) -> None:
    options = {"seed": 5, "ignore_eos": True, **SETTINGS[name]}
    steps = options.pop("max_tokens", 24)
    expected = mlxgen.generate(model, PROMPT, max_tokens=steps, **options)
    trace = mlxgen.trace(model, PROMPT, steps, lens=True, attention=[(1, 2)], **options)
    assert [step.chosen.token for step in trace.steps] == expected.tokens
    assert (trace.text, trace.finish_reason) == (expected.text, expected.finish_reason)
    assert "".join(step.text for step in trace.steps) == expected.text
    assert [step.chosen.logprob for step in trace.steps] == pytest.approx(expected.logprobs, abs=1e-5)
    assert trace.steps[-1].total_logprob == pytest.approx(sum(expected.logprobs), abs=1e-4)


def test_an_end_token_ends_the_trace_and_what_the_loop_had_begun_is_not_in_it(model: mlxgen.Model) -> None:
    end = min(model.end_tokens)
    trace = traced(model, logit_bias={end: 100.0}, ignore_eos=False)
    assert [step.chosen.token for step in trace.steps] == [end]
    assert trace.finish_reason == "stop" and trace.text == ""


def test_without_a_seed_the_drawn_one_is_told(model: mlxgen.Model) -> None:
    trace = mlxgen.trace(model, PROMPT, 8, ignore_eos=True)
    again = mlxgen.trace(model, PROMPT, 8, ignore_eos=True, seed=trace.seed)
    assert [step.chosen for step in again.steps] == [step.chosen for step in trace.steps]


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(0.8, 40, None), (0.7, 25, 0.8), (1.5, None, 0.9), (2.0, None, None)]
)
def test_each_steps_numbers_are_those_of_a_forward_pass_over_the_whole_context(
    model: mlxgen.Model, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    trace = traced(model, temperature=temperature, top_k=top_k, top_p=top_p, candidates=300)
    weights = oracles.parameters(model.decoder)
    ids = [token.id for token in trace.prompt_tokens]
    everything = oracles.numpy_logits(weights, model.config, [*ids, *(token.id for token in trace.tokens)])
    for step in trace.steps:
        logits = everything[step.context_length - 1]
        p, final = oracles.softmax(logits), oracles.ruled(logits, temperature, top_k, top_p)
        chosen = step.chosen.token
        assert step.chosen.rank == 1 + int((logits > logits[chosen]).sum())
        assert step.chosen.probability == pytest.approx(p[chosen], abs=1e-5)
        assert step.chosen.rule_probability == pytest.approx(final[chosen], abs=1e-5)
        assert step.entropy == pytest.approx(-(p * np.log2(p)).sum(), abs=1e-3)
        kept = final > 0
        assert step.rule_entropy == pytest.approx(-(final[kept] * np.log2(final[kept])).sum(), abs=1e-3)
        assert len(step.candidates) == len(logits) and step.rest.count == 0
        for one in step.candidates:
            assert one.logit == pytest.approx(logits[one.token], abs=1e-4) and one.adjusted == one.logit
            assert one.probability == pytest.approx(p[one.token], abs=1e-5)
            assert one.rule_probability == pytest.approx(final[one.token], abs=1e-5)
            assert (one.cut_by is None) == (one.rule_probability > 0)
        last = step.rules[-1]
        assert last.kept == kept.sum()
        if top_p:
            assert last.name == "top_p" and top_p <= last.kept_probability + 1e-6


def test_the_random_number_falls_on_the_chosen_token(model: mlxgen.Model) -> None:
    trace = traced(model, steps=40, temperature=1.2, candidates=300)
    for step in trace.steps:
        assert step.random is not None and step.key is not None and len(step.key) == 2
        end = 0.0
        for one in sorted(step.candidates, key=lambda one: one.token):
            end += one.rule_probability
            if end > step.random:
                break
        assert one.token == step.chosen.token
        assert step.chosen.interval[1] == pytest.approx(end, abs=1e-6)
    assert len({step.random for step in trace.steps}) == 40
    assert all(step.random is None and step.key is None for step in traced(model, temperature=0).steps)


def test_the_rest_as_one_mass_stands_for_its_tokens_at_any_temperature(model: mlxgen.Model) -> None:
    ids = model.tokenizer.encode(PROMPT)
    logits = oracles.numpy_logits(oracles.parameters(model.decoder), model.config, ids)[-1]
    rest = traced(model, candidates=20, steps=1, temperature=0).steps[0].rest
    others = np.sort(logits)[::-1][20:]
    assert rest.count == len(others) == sum(size for size, _, _ in rest.groups)
    assert rest.probability == pytest.approx(oracles.softmax(logits)[np.argsort(-logits)[20:]].sum(), abs=1e-5)
    for temperature in (0.3, 0.8, 1.0, 2.0):
        banded = sum(
            size * math.exp(mean / temperature) * (1 + variance / (2 * temperature**2))
            for size, mean, variance in rest.groups
        )
        exact = np.exp(others / temperature).sum()
        whole = np.exp(logits / temperature).sum()
        assert abs(banded - exact) / whole < 1e-3


def test_the_cache_is_one_position_behind_the_text(model: mlxgen.Model) -> None:
    trace = traced(model)
    n = len(trace.prompt_tokens)
    assert [(step.cache.before, step.cache.after) for step in trace.steps] == [
        (0, n),
        *((n + m, n + m + 1) for m in range(11)),
    ]
    assert [step.processed for step in trace.steps] == [n] + [1] * 11
    assert [step.context_length for step in trace.steps] == [n + m for m in range(12)]
    c = model.config
    for step in trace.steps:
        assert step.cache.held == [(0, step.context_length)] and step.cache.dropped == [] and not step.cache.slid
        assert step.cache.layer_bytes == 2 * step.cache.after * c.n_embd * 4  # keys and values in float32
        assert step.cache.total_bytes == c.n_layer * step.cache.layer_bytes <= step.cache.allocated_bytes


@pytest.mark.parametrize("chunk", [3, 512])
def test_a_rotating_cache_tells_what_it_holds_pins_and_has_dropped(model: mlxgen.Model, chunk: int) -> None:
    trace = traced(model, steps=20, max_kv_size=9, keep=2, prefill_chunk=chunk, attention=[(0, 1)])
    for step in trace.steps:
        n = step.context_length
        assert n > 9
        assert step.cache.held == [(0, 2), (n - 7, n)]
        assert step.cache.dropped == [(2, n - 7)]
        assert (step.cache.after, step.cache.pinned) == (9, 2)
        assert len(step.attention[0].weights) == 9


def test_a_sliding_context_tells_what_it_dropped(build_model: Callable[..., mlxgen.Model]) -> None:
    model = build_model(n_positions=24)
    trace = traced(model, steps=40, overflow="slide", keep=2)
    slid = [step for step in trace.steps if step.cache.slid]
    assert len(slid) >= 2
    for step in slid:
        n = step.context_length  # 12 rebuilt positions, then the newest token
        assert step.cache.held == [(0, 2), (n - 11, n)]
        assert step.cache.dropped == [(2, n - 11)]
        assert step.cache.after == 13
    before = next(step for step in trace.steps if step.context_length == slid[0].context_length - 1)
    assert before.cache.dropped == [] and before.cache.after == 24


def test_the_lens_and_the_attention_are_those_of_transformers() -> None:
    import torch

    tiny = tiny_gpt2(3, n_layer=3)
    model, theirs = tiny.model(), tiny.torch()
    heads = [(layer, head) for layer in range(3) for head in range(4)]
    trace = traced(model, steps=6, lens=True, attention=heads)
    ids = [token.id for token in [*trace.prompt_tokens, *trace.tokens]]
    with torch.no_grad():
        out = theirs(torch.tensor([ids]), output_attentions=True, output_hidden_states=True)
        final = theirs.transformer.ln_f
        layers = [theirs.lm_head(final(hidden))[0] for hidden in out.hidden_states[1:3]] + [out.logits[0]]
    for step in trace.steps:
        at = step.context_length - 1
        for one in step.attention:
            expected = out.attentions[one.layer][0, one.head, at, : at + 1].numpy()
            assert one.weights == pytest.approx(expected, abs=1e-5)
        assert [one.layer for one in step.lens] == [0, 1, 2]
        for one, logits in zip(step.lens, layers, strict=True):
            p = oracles.softmax(logits[at].numpy().astype(np.float64))
            assert one.token == int(p.argmax())
            assert one.probability == pytest.approx(p.max(), abs=1e-5)
            assert one.chosen_probability == pytest.approx(p[step.chosen.token], abs=1e-5)


def test_attention_over_a_full_ring_belongs_to_the_right_tokens(model: mlxgen.Model) -> None:
    trace = traced(model, steps=16, max_kv_size=9, keep=2, attention=[(0, 3)])
    weights, c = oracles.parameters(model.decoder), model.config
    ids = [token.id for token in [*trace.prompt_tokens, *trace.tokens]]
    x = weights["model.wte.weight"][ids] + weights["model.wpe.weight"][: len(ids)]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + c.layer_norm_epsilon)
    x = x * weights["model.h.0.ln_1.weight"] + weights["model.h.0.ln_1.bias"]
    qkv = x @ weights["model.h.0.attn.c_attn.weight"].T + weights["model.h.0.attn.c_attn.bias"]
    q, k = (qkv[:, part : part + c.n_embd].reshape(-1, 4, 8)[:, 3] for part in (0, c.n_embd))
    for step in trace.steps:
        held = [at for a, b in step.cache.held for at in range(a, b)]
        expected = oracles.softmax(k[held] @ q[step.context_length - 1] / math.sqrt(8))
        assert step.attention[0].weights == pytest.approx(expected, abs=1e-5)


def test_the_greedy_path_is_the_greedy_answer(model: mlxgen.Model) -> None:
    trace = traced(model)
    answer = mlxgen.generate(model, PROMPT, max_tokens=12, temperature=0, ignore_eos=True)
    assert trace.greedy is not None
    assert (trace.greedy.tokens, trace.greedy.logprobs) == (answer.tokens, answer.logprobs)
    assert traced(model, greedy_path=False).greedy is None
    assert traced(model, temperature=0).greedy is None


def test_the_prompt_stands_as_exact_pieces_and_lone_bytes_as_their_values(model: mlxgen.Model) -> None:
    trace = traced(model, "a the\n€", steps=1)
    assert [token.text for token in trace.prompt_tokens] == ["a", " the", "\n", "\\xe2", "\\x82", "\\xac"]
    assert trace.prompt_tokens[1].piece == "Ġthe"
    assert [token.id for token in trace.prompt_tokens] == model.tokenizer.encode("a the\n€")


def test_json_says_all_of_it(model: mlxgen.Model) -> None:
    trace = traced(model, lens=True, attention=[(0, 0)], **SETTINGS["penalties and bias"])
    read = json.loads(trace.to_json())
    assert read == json.loads(json.dumps(asdict(trace)))
    assert read["options"]["logit_bias"] == {"5": 2.0, "7": "-inf"}
    assert read["steps"][3]["rules"][0]["name"] == "adjust"
    assert all(one["token"] != 7 for step in read["steps"] for one in step["candidates"])


def test_times_add_up_to_no_more_than_the_whole(model: mlxgen.Model) -> None:
    began = time.perf_counter()
    steps = traced(model).steps
    whole = time.perf_counter() - began
    for step in steps:
        assert all(part >= 0 for part in asdict(step.seconds).values())
        assert step.seconds.transformer > 0 and step.seconds.logits > 0 and step.seconds.sample > 0
    assert sum(part for step in steps for part in asdict(step.seconds).values()) <= whole


def test_looking_inside_takes_none_of_a_stages_time(model: mlxgen.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = SimpleNamespace(perf_counter=count().__next__)  # one second a reading, two readings a stage
    monkeypatch.setattr("mlxgen.tracing.observer.time", ticks)
    steps = traced(model, steps=4, lens=True, attention=[(0, 0)]).steps
    assert [(step.seconds.transformer, step.seconds.logits) for step in steps] == [(1, 1)] * 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"attention": [(2, 0)]}, "no head 0 in layer 2: layers go from 0 to 1, heads from 0 to 3"),
        ({"attention": "some"}, 'attention must be "all"'),
        ({"attention": 5}, r'attention must be "all" or a list of \(layer, head\) pairs, not 5'),
        ({"attention": [(0,)]}, 'attention must be "all"'),
        ({"attention": [("a", 1)]}, 'attention must be "all"'),
        ({"attention": ["0.3"]}, 'attention must be "all"'),
        ({"steps": 0}, "steps must be a whole number of at least 1, not 0"),
        ({"steps": None}, "steps must be"),
        ({"max_tokens": 3}, "steps="),
        ({"candidates": 0}, "candidates must be a whole number of at least 1"),
        ({"temperature": -1}, "temperature"),
        ({"wrong": 1}, "unknown option 'wrong'"),
    ],
)
def test_bad_options_are_told_in_a_line(model: mlxgen.Model, options: dict[str, Any], said: str) -> None:
    with pytest.raises(mlxgen.OptionError, match=said):
        mlxgen.trace(model, PROMPT, **options)


def test_a_prompt_that_fills_the_table_gives_a_trace_without_steps(model: mlxgen.Model) -> None:
    trace = mlxgen.trace(model, [5] * 64)
    assert (trace.steps, trace.text, trace.finish_reason) == ([], "", "context")
    assert json.loads(trace.to_json())["steps"] == []
