"""A draft model: what it guesses, how often that is right, and that sampled text keeps its distribution."""

from __future__ import annotations

import math
from dataclasses import replace

import mlx.core as mx
import pytest

import mlxgen
from mlxgen.errors import OptionError
from mlxgen.generation.draft import Draft
from mlxgen.generation.session import Session

from ..support import oracles
from ..support.models import byte_tokenizer, tiny_gpt2
from .test_guesses import RULES


def test_with_a_draft_a_seed_gives_the_same_text_again_in_every_way(short_model, draft_model):
    options = {"max_tokens": 40, "seed": 11, "overflow": "slide", "draft": draft_model, "ignore_eos": True}
    first = mlxgen.generate(short_model, [1, 2], **options)
    assert [step.token for step in mlxgen.stream(short_model, [1, 2], **options)] == first.tokens
    assert mlxgen.generate(short_model, [1, 2], **{**options, "seed": 12}).tokens != first.tokens


def exact_probability(model, tokens, prompt, rules):
    """Of a sampled text, by NumPy: the product of its tokens' probabilities under temperature and top-k."""
    context, product = [*prompt, *tokens], 1.0
    rows = oracles.numpy_logits(oracles.parameters(model.decoder), model.config, context[:-1])
    for at, token in enumerate(tokens, len(prompt) - 1):
        product *= oracles.ruled(rows[at], rules["temperature"], rules["top_k"])[token]
    return product


def test_sampled_texts_with_a_draft_are_distributed_as_the_models_own(build_model):
    """Whole texts of four tokens against their exact probabilities: chi-square, 15 degrees of freedom, 1 in 10^4."""
    model, draft = build_model(n_positions=16), build_model(seed=5, n_positions=16, n_layer=1)
    rules, prompt, n = {"temperature": 2.0, "top_k": 2}, [3, 1, 4], 800
    counts: dict[tuple[int, ...], int] = {}
    accepted = guesses = 0
    session = Session(model)
    for seed in range(n):
        session.reset_to(prompt)
        got = session.generate(max_tokens=4, seed=seed, ignore_eos=True, draft=draft, **rules)
        counts[tuple(got.tokens)] = counts.get(tuple(got.tokens), 0) + 1
        accepted, guesses = accepted + got.accepted, guesses + got.guesses
    assert 0 < accepted < guesses  # both outcomes were there
    expected = {text: n * exact_probability(model, text, prompt, rules) for text in counts}
    assert len(counts) <= 16 and sum(expected.values()) > 0.99 * n
    assert sum((count - expected[text]) ** 2 / expected[text] for text, count in counts.items()) < 44


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_a_draft_that_is_the_model_is_always_right(short_model, rules):
    """Also where it draws: two equal distributions accept every guess."""
    got = mlxgen.generate(short_model, [5, 6], max_tokens=29, seed=3, ignore_eos=True, draft=short_model, **rules)
    assert got.accepted == got.guesses >= 20
    assert got.tokens_per_pass > 4


def test_a_draft_session_stays_with_the_session_and_only_new_tokens_are_drafted_from(short_model, draft_model):
    session = Session(short_model, overflow="slide")
    first = session.generate([1, 2, 3], max_tokens=10, seed=1, draft=draft_model)
    drafting = session.draft_context(draft_model)
    session.generate([9], max_tokens=10, seed=2, draft=draft_model)
    assert session.draft_context(draft_model) is drafting and first.guesses > 0
    assert session.fork().draft_context(draft_model) is not drafting
    session.rewind(5)
    plain = Session(short_model, overflow="slide")
    plain.extend(session.tokens)
    options = {"max_tokens": 9, "temperature": 0}
    assert session.generate(**options, draft=draft_model).tokens == plain.generate(**options).tokens


def test_a_draft_of_the_same_size_but_other_tokens_is_refused(model, tmp_path):
    folder = tiny_gpt2().write(tmp_path / "m")
    text = (folder / "tokenizer.json").read_text()
    assert mlxgen.generate(model, "a", max_tokens=3, draft=mlxgen.load(str(folder))).guesses
    (folder / "tokenizer.json").write_text(
        text.replace('"A":', '"tmp":').replace('"B":', '"A":').replace('"tmp":', '"B":')
    )
    with pytest.raises(OptionError, match="a different vocabulary"):
        Draft(Session(model), mlxgen.load(str(folder)))


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a_draft_whose_logits_are_not_numbers_changes_nothing_but_the_speed(short_model, build_model, temperature):
    broken = build_model(seed=5, n_positions=32)
    broken.decoder.model.wpe.weight[6] = math.nan
    ends = {short_model.config.vocab_size - 1: -math.inf}
    options = {"max_tokens": 25, "temperature": temperature, "top_k": 5, "logit_bias": ends, "logprobs": 5}
    for seed in range(5):
        got = mlxgen.generate(short_model, [1, 2, 3], seed=seed, ignore_eos=True, draft=broken, **options)
        for token, candidates in zip(got.tokens, got.candidates, strict=True):
            assert token in [candidate.token for candidate in candidates if candidate.kept]


def test_a_long_prompt_is_read_by_the_draft_after_the_first_token_is_out(build_model):
    model, draft = build_model(n_positions=64), build_model(seed=5, n_positions=64, n_layer=1)
    session = Session(model)
    steps = session.stream(list(range(40)), max_tokens=10, draft=draft, temperature=0)
    next(steps)
    assert session.draft_context(draft).processed == 0
    assert sum(step.guesses for step in steps) > 0
    assert session.draft_context(draft).processed > 40


def test_a_draft_that_is_always_wrong_is_asked_less_and_less(model):
    draft = Draft(Session(model), model)
    passes, asked = 200, 0
    for _ in range(passes):
        if draft._waiting:
            draft.guess(mx.array([0]), False, 4, None)
        else:
            draft.learn(4, 0)
            asked += 1
    assert asked < 12
    draft.learn(4, 1)
    assert draft._waiting == 0


@pytest.mark.parametrize(("rows", "draft_rows"), [(0, 20), (20, 0), (3, 20)])
@pytest.mark.parametrize("greedy", [True, False])
def test_a_draft_whose_vocabulary_is_padded_otherwise_is_the_same_vocabulary(tmp_path, rows, draft_rows, greedy):
    size = byte_tokenizer().get_vocab_size()
    model = mlxgen.load(str(tiny_gpt2(vocab_size=size + rows).write(tmp_path / "model")))
    draft = mlxgen.load(str(tiny_gpt2(5, n_layer=1, vocab_size=size + draft_rows).write(tmp_path / "draft")))
    options = {"max_tokens": 30, "ignore_eos": True, "seed": 4, "temperature": 0 if greedy else 3.0, "top_k": None}
    got = mlxgen.generate(model, [1, 2, 3], draft=draft, **options)
    assert got.guesses > 0 and max(got.tokens) < size + rows
    if greedy:
        assert got.tokens == mlxgen.generate(model, [1, 2, 3], **options).tokens
    session = Session(model)
    session.extend([1, 2, size + rows - 1, 3])  # the model's last id, which the draft may not have
    assert len(session.generate(draft=draft, **options).tokens) == 30


def test_a_draft_of_the_same_weights_but_more_rows_is_always_right(build_model):
    """Its further ids are never guessed, however likely it finds them."""
    model, draft = build_model(), build_model()
    draft.decoder.model.wte.weight = mx.concatenate([draft.decoder.model.wte.weight, 5 * mx.ones((7, 32))])
    wide = replace(draft, config=replace(draft.config, vocab_size=draft.config.vocab_size + 7))
    got = mlxgen.generate(model, [5, 6], max_tokens=29, temperature=0, ignore_eos=True, draft=wide)
    assert got.accepted == got.guesses > 0
