"""Beam search finds the answers, log-probabilities and scores of transformers' beam search."""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen.errors import ContextError, NumericError, OptionError
from mlxgen.model import Model
from mlxgen.network.decoder import GPT2

from ..support.models import tiny_gpt2
from ..support.oracles import log_softmax, numpy_logits, parameters

SEEDS = range(3)
VOCABULARY = tiny_gpt2().config.vocab_size
CLOSE = 2e-5


@cache
def both(seed: int) -> tuple[Model, Any]:
    """A tiny model without end tokens, and the same in transformers."""
    tiny = tiny_gpt2(seed)
    return ending(tiny.model(), []), tiny.torch()


def theirs(decoder: Any, prompt: Sequence[int], ends: Sequence[int], **options: Any) -> list[tuple[list[int], float]]:
    """The tokens and scores of transformers' answers, best first."""
    ids = torch.tensor([list(prompt)])
    with torch.inference_mode():
        out = decoder.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            eos_token_id=list(ends) or None,
            pad_token_id=1,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    lengths = (out.beam_indices >= 0).sum(1).tolist()
    texts = [row[len(prompt) :][:length].tolist() for row, length in zip(out.sequences, lengths, strict=True)]
    return list(zip(texts, out.sequences_scores.tolist(), strict=True))


def ending(model: Model, ends: Sequence[int]) -> Model:
    return replace(model, end_tokens=frozenset(ends))


def assert_the_same(ours: list[mlxgen.BeamGeneration], expected: list[tuple[list[int], float]]) -> None:
    assert [one.tokens for one in ours] == [tokens for tokens, _ in expected]
    assert np.allclose([one.score for one in ours], [score for _, score in expected], rtol=CLOSE, atol=CLOSE)


@settings(max_examples=25)
@given(data=st.data())
def test_answers_and_scores_are_those_of_transformers(data: st.DataObject) -> None:
    model, torch_model = both(data.draw(st.sampled_from(SEEDS)))
    prompt = data.draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12))
    beams, length = data.draw(st.integers(2, 6)), data.draw(st.integers(1, 12))
    penalty = data.draw(st.sampled_from([-1.0, 0.0, 0.6, 1.0, 2.0]))
    early = data.draw(st.sampled_from([False, True, "never"]))
    shared: dict[str, Any] = {"length_penalty": penalty, "early_stopping": early}
    given: dict[str, Any] = {"beams": beams, "n_best": beams, "max_tokens": length, **shared}
    asked: dict[str, Any] = {"num_beams": beams, "num_return_sequences": beams, "max_new_tokens": length, **shared}
    free = mlxgen.beam_search(model, prompt, **given)
    assert_the_same(free, theirs(torch_model, prompt, [], **asked))
    assert {one.finish_reason for one in free} == {"length"} and {len(one.tokens) for one in free} == {length}
    # Tokens that are sure to come become end tokens.
    seen = sorted({token for one in free for token in one.tokens})
    ends = data.draw(st.lists(st.sampled_from(seen), min_size=1, max_size=3, unique=True))
    found = mlxgen.beam_search(ending(model, ends), prompt, **given)
    assert_the_same(found, theirs(torch_model, prompt, ends, **asked))
    for one in found:
        assert one.finish_reason == ("stop" if one.tokens[-1] in ends else "length")


@settings(max_examples=10)
@given(data=st.data())
def test_bias_penalties_and_bans_change_log_probabilities_as_in_transformers(data: st.DataObject) -> None:
    model, torch_model = both(0)
    prompt = data.draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=2, max_size=8))
    (seen,) = mlxgen.beam_search(model, prompt, max_tokens=8)
    bias = {token: data.draw(st.sampled_from([-2.0, 1.5, -math.inf])) for token in seen.tokens[:2]}
    rules: dict[str, Any] = {
        "repetition_penalty": data.draw(st.sampled_from([None, 0.8, 1.3])),
        "suppress_tokens": data.draw(st.sampled_from([None, seen.tokens[2:3]])),
    }
    ngram, early = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 6))
    words = data.draw(st.sampled_from([None, [seen.tokens[3:5]]]))
    ends = seen.tokens[-1:]
    ours = mlxgen.beam_search(
        ending(model, ends),
        prompt,
        n_best=4,
        max_tokens=12,
        logit_bias=bias,
        no_repeat_ngram=ngram or None,
        min_tokens=early,
        bad_words=words,
        **rules,
    )
    expected = theirs(
        torch_model,
        prompt,
        ends,
        num_beams=4,
        num_return_sequences=4,
        max_new_tokens=12,
        sequence_bias={(token,): value for token, value in bias.items()},
        no_repeat_ngram_size=ngram,
        min_new_tokens=early,
        bad_words_ids=words,
        **rules,
    )
    assert_the_same(ours, expected)


class Containing(transformers.StoppingCriteria):
    """Ends a text that contains a stop text after the prompt."""

    def __init__(self, model: Model, prompt: Sequence[int], stop: str) -> None:
        self.decode, self.prompt, self.stop = model.tokenizer.decode, list(prompt), stop

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        start = len(self.decode(self.prompt))
        return torch.tensor([self.stop in self.decode(row.tolist())[start:] for row in input_ids])


def test_a_stop_text_ends_an_answer_as_a_stopping_criterion_of_transformers_does() -> None:
    model, torch_model = both(1)
    prompt = model.tokenizer.encode("Far far")
    stopped = 0
    for free in mlxgen.beam_search(model, prompt, beams=5, n_best=5, max_tokens=14):
        stop = free.text[2:3]
        ours = mlxgen.beam_search(model, prompt, beams=5, n_best=5, max_tokens=14, stop=stop)
        criteria = transformers.StoppingCriteriaList([Containing(model, prompt, stop)])
        sizes = {"num_beams": 5, "num_return_sequences": 5, "max_new_tokens": 14}
        assert_the_same(ours, theirs(torch_model, prompt, [], **sizes, stopping_criteria=criteria))
        for one in ours:
            whole = model.tokenizer.decode([*prompt, *one.tokens]).removeprefix("Far far")
            assert one.text == whole.split(stop)[0] and (stop in whole) == (one.finish_reason == "stop")
            stopped += one.finish_reason == "stop"
    assert stopped > 5


def test_log_probabilities_are_the_models_own_whatever_the_rules(model: Model) -> None:
    prompt = model.tokenizer.encode("Once upon")
    weights = parameters(model.decoder)
    for options in ({}, {"repetition_penalty": 1.5, "presence_penalty": 0.2, "logit_bias": {5: 2.0}}):
        for one in mlxgen.beam_search(model, prompt, n_best=4, max_tokens=10, **options):
            logits = numpy_logits(weights, model.config, prompt + one.tokens)[len(prompt) - 1 : -1]
            own = log_softmax(logits)[np.arange(len(one.tokens)), one.tokens]
            assert np.allclose(one.logprobs, own, atol=1e-5) and one.logprob == pytest.approx(own.sum(), abs=1e-4)
            assert options or one.score == pytest.approx(one.logprob / len(one.tokens), abs=1e-5)


def test_one_beam_is_greedy(model: Model) -> None:
    ours = mlxgen.beam_search(model, "Far far", beams=1, max_tokens=20, ignore_eos=True)
    greedy = mlxgen.generate(model, "Far far", temperature=0, max_tokens=20, ignore_eos=True)
    assert (ours[0].tokens, ours[0].text) == (greedy.tokens, greedy.text)


def test_more_beams_find_a_more_probable_answer_than_greedy() -> None:
    gained = 0
    for seed in SEEDS:
        model, _ = both(seed)
        for word in ("Far", "Once", "king"):
            greedy = mlxgen.generate(model, word, temperature=0, max_tokens=12, ignore_eos=True)
            (best,) = mlxgen.beam_search(model, word, beams=8, max_tokens=12, ignore_eos=True)
            gained += best.logprob > sum(greedy.logprobs) + 1e-3
    assert gained >= 5


def test_an_answer_ends_where_the_context_is_full(short_model: Model) -> None:
    prompt = list(range(5, 31))
    model = ending(short_model, [])
    full = mlxgen.beam_search(model, prompt, n_best=2, max_tokens=50, early_stopping="never")
    fitting = mlxgen.beam_search(model, prompt, n_best=2, max_tokens=6, early_stopping="never")
    assert [one.tokens for one in full] == [one.tokens for one in fitting]
    assert {one.finish_reason for one in full} == {"context"} and {len(one.tokens) for one in full} == {6}
    assert {one.finish_reason for one in fitting} == {"length"}
    for length in (32, 33):  # a search cannot slide
        with pytest.raises(ContextError, match=rf"{length} tokens .* the model's 32 positions; shorten it$"):
            mlxgen.beam_search(model, list(range(length)))


def test_the_prompt_is_processed_once_and_each_step_takes_one_pass(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, ...]] = []
    plain = GPT2.hidden

    def counted(self: GPT2, ids: mx.array, cache: Any = None) -> mx.array:
        shapes.append(ids.shape)
        return plain(self, ids, cache)

    monkeypatch.setattr(GPT2, "hidden", counted)
    mlxgen.beam_search(model, list(range(20)), beams=3, max_tokens=7, ignore_eos=True)
    assert shapes == [(1, 20)] + [(1, 3)] * 6


def test_more_beams_take_memory_for_their_own_tokens_alone() -> None:
    """A copy of the prompt for each beam would take ten times as much."""
    model = tiny_gpt2(n_positions=1024, n_embd=128).model()
    prompt, new, peaks = 900, 40, []
    for beams in (1, 8):
        gc.collect()
        before = mx.get_active_memory()
        (one,) = mlxgen.beam_search(model, [5] * prompt, beams=beams, max_tokens=new, ignore_eos=True, prefill_chunk=32)
        peaks.append(one.peak_memory - before)
        assert mx.get_active_memory() <= before + 100_000, "what the search held is free again"
    per_token = model.config.cache_bytes_per_token(4)
    assert peaks[1] - peaks[0] < 2 * per_token * 7 * new < per_token * 7 * (prompt + new) / 10


def test_text_pieces_and_seed_are_those_of_a_generation(model: Model) -> None:
    for one in mlxgen.beam_search(model, "Fär", n_best=4, max_tokens=9, ignore_eos=True):
        assert "".join(one.pieces) == one.text and len(one.pieces) == len(one.tokens) == len(one.logprobs)
        assert model.tokenizer.decode([*one.prompt_tokens, *one.tokens]) == "Fär" + one.text
        assert one.prompt == "Fär" and one.seed == 0 and one.steps == 9 and one.generation_tps > 0


def test_progress_counts_the_prompt(model: Model) -> None:
    told: list[tuple[int, int]] = []
    mlxgen.beam_search(model, [5] * 20, max_tokens=2, prefill_chunk=10, progress=lambda *now: told.append(now))
    assert told == [(0, 20), (10, 20), (20, 20)]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"beams": 0}, "beams must be a whole number of at least 1"),
        ({"beams": 2.0}, "beams must be a whole number"),
        ({"n_best": 5}, r"n_best must be at most the number of beams \(4\), not 5"),
        ({"n_best": 0}, "n_best must be a whole number"),
        ({"length_penalty": math.nan}, "length_penalty must be a number from -10 to 10"),
        ({"length_penalty": "1"}, "length_penalty must be a number"),
        ({"early_stopping": "always"}, 'early_stopping must be True, False or "never"'),
        ({"early_stopping": 1}, "early_stopping must be True"),
        ({"early_stopping": np.array([1, 2])}, "early_stopping must be True"),
        ({"beams": 1000}, f"vocabulary of {VOCABULARY} tokens allows at most {VOCABULARY // 2} beams"),
        ({"max_tokens": 0}, "max_tokens must be"),
        ({"temperature": 0.8}, "temperature cannot be used with beams: a beam search draws nothing at random"),
        ({"top_k": 40}, "top_k cannot be used with beams"),
        ({"top_p": 0.9}, "top_p cannot be used with beams"),
        ({"min_p": 0.1}, "min_p cannot be used with beams"),
        ({"typical_p": 0.9}, "typical_p cannot be used with beams: a beam search draws nothing"),
        ({"epsilon_cutoff": 0.1}, "epsilon_cutoff cannot be used with beams"),
        ({"eta_cutoff": 0.1}, "eta_cutoff cannot be used with beams"),
        ({"seed": 1}, "seed cannot be used with beams"),
        ({"lookahead": True}, "lookahead cannot be used with beams: a beam search continues several texts at once"),
        ({"logprobs": 3}, "logprobs cannot be used with beams"),
        ({"logits_processors": [lambda tokens, logits: logits]}, "logits_processors cannot be used with beams"),
        ({"max_kv_size": 16}, "max_kv_size cannot be used with beams: a beam search keeps the whole context"),
        ({"keep": 4}, "keep cannot be used with beams"),
        ({"overflow": "slide"}, "overflow cannot be used with beams"),
        ({"num_beams": 4}, r"unknown option 'num_beams'; did you mean beams\?"),
        ({"num_return_sequences": 4}, r"did you mean n_best\?"),
        ({"num_samples": 4}, r"did you mean n_best\?"),
        ({"max_new_tokens": 4}, r"did you mean max_tokens\?"),
        ({"lenght_penalty": 4}, r"did you mean length_penalty\?"),
        ({"logit_bias": {VOCABULARY: 1.0}}, "the highest token id is"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(model: Model, options: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        mlxgen.beam_search(model, "Far", **options)


def test_a_draft_is_refused(model: Model, draft_model: Model) -> None:
    with pytest.raises(OptionError, match="draft cannot be used with beams"):
        mlxgen.beam_search(model, "Far", draft=draft_model)


def test_options_that_change_nothing_are_accepted(model: Model) -> None:
    plain = mlxgen.beam_search(model, "Far", max_tokens=5)
    same = mlxgen.beam_search(
        model, "Far", max_tokens=5, temperature=0, top_k=None, top_p=None, seed=None, lookahead=False, overflow="stop"
    )
    assert [one.tokens for one in plain] == [one.tokens for one in same]


def test_a_vocabulary_that_rules_leave_empty_and_one_that_they_leave_small(model: Model) -> None:
    everything = dict.fromkeys(range(VOCABULARY), -math.inf)
    with pytest.raises(NumericError, match="removed every token"):
        mlxgen.beam_search(model, "Far", logit_bias=everything)
    two = {token: bias for token, bias in everything.items() if token not in (5, 6)}
    found = mlxgen.beam_search(model, "Far", beams=6, n_best=6, max_tokens=2, logit_bias=two, ignore_eos=True)
    assert sorted(one.tokens for one in found) == [[5, 5], [5, 6], [6, 5], [6, 6]]


def test_logits_that_are_not_finite_are_an_error() -> None:
    tiny = tiny_gpt2()
    tiny.weights["model.ln_f.bias"][3] = math.nan
    with pytest.raises(NumericError, match="step 0: the logits are not finite"):
        mlxgen.beam_search(tiny.model(), "Far")
