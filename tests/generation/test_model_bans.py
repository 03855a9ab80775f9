"""No-repeat n-grams, bad words, minimum lengths and suppressed tokens in whole texts, by every way to generate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxgen
from mlxgen.errors import NumericError, OptionError
from mlxgen.generation.model_bans import model_bans
from mlxgen.generation.session import Session
from mlxgen.sampling.bans import Bans
from mlxgen.sampling.samplers import Sampling

from ..support.models import letter_tokenizer, tiny_gpt2
from ..text.test_sentencepiece import trained

PROMPT = [3, 1, 4, 1, 5]
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # ours, and transformers'
    "n-grams": ({"no_repeat_ngram": 2}, {"no_repeat_ngram_size": 2}),
    "single tokens": ({"no_repeat_ngram": 1}, {"no_repeat_ngram_size": 1}),
    "longer n-grams": ({"no_repeat_ngram": 4}, {"no_repeat_ngram_size": 4}),
    "suppressed": ({"suppress_tokens": [*range(20, 240)]}, {"suppress_tokens": [*range(20, 240)]}),
}


@pytest.fixture(scope="module")
def repeating() -> Any:
    """A model that repeats itself, and often chooses its end token."""
    return tiny_gpt2(3)


def greedy(tiny: Any, n: int, prompt: list[int] = PROMPT, **options: Any) -> list[int]:
    """What transformers generates, greedily."""
    import torch

    network = tiny.torch()
    network.generation_config.pad_token_id = tiny.config.eos_token_ids[0]
    ids = torch.tensor([prompt])
    out = network.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=n, **options)
    return [int(token) for token in out[0][len(prompt) :]]


@pytest.mark.parametrize("name", CASES)
def test_greedy_texts_are_those_of_transformers(repeating: Any, name: str) -> None:
    ours, theirs = CASES[name]
    plain = greedy(repeating, 50)
    expected = greedy(repeating, 50, **theirs)
    assert expected != plain
    assert mlxgen.generate(repeating.model(), PROMPT, max_tokens=50, temperature=0, **ours).tokens == expected


def test_greedy_texts_without_bad_words_are_those_of_transformers(repeating: Any) -> None:
    plain = greedy(repeating, 30)
    words: list[list[int]] = []
    for at in (2, 5, 9):  # sequences of one, two and three tokens that would come
        words.append(plain[at : at + 1 + len(words)])
    expected = greedy(repeating, 30, bad_words_ids=words)
    got = mlxgen.generate(repeating.model(), PROMPT, max_tokens=30, temperature=0, bad_words=words)
    assert got.tokens == expected != plain


def test_the_end_comes_no_earlier_than_in_transformers() -> None:
    tiny = tiny_gpt2(3)
    plain = greedy(tiny, 30)
    tiny = tiny_gpt2(3, eos_token_id=plain[4])
    model = tiny.model()
    assert mlxgen.generate(model, PROMPT, temperature=0).finish_reason == "stop"
    for least in (1, 5, 9, 20):
        expected = greedy(tiny, 30, min_new_tokens=least)
        got = mlxgen.generate(model, PROMPT, max_tokens=30, temperature=0, min_tokens=least)
        assert got.tokens == expected
        assert len(got.tokens) >= least


# Every way to generate, against a processor in NumPy that is called with the tokens so far


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lookahead": {"lookahead": True},
    "rotating": {"max_kv_size": 9, "keep": 2},
    "sliding": {"overflow": "slide", "keep": 2},
    "sliding with lookahead": {"overflow": "slide", "lookahead": True},
}
RULES: dict[str, dict[str, Any]] = {
    "n-grams": {"no_repeat_ngram": 2},
    "single tokens, greedy": {"no_repeat_ngram": 1, "temperature": 0},
    "bad words": {"bad_words": [[260], [97, 98], [5], [7, 8, 9]], "temperature": 1.5},
    "min tokens": {"min_tokens": 30, "logit_bias": {281: 5.0}},
    "suppressed": {"suppress_tokens": [1, 2, 3, 281], "no_repeat_ngram": 3},
}

BANS = ("no_repeat_ngram", "bad_words", "min_tokens", "suppress_tokens")


class InNumpy:
    """The bans as a logits processor, one token after another."""

    def __init__(self, model: mlxgen.Model, prompt: int, options: dict[str, Any]) -> None:
        self.window, self.prompt, self.ends, self.options = model.config.n_positions, prompt, model.end_tokens, options

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        context, changed = tokens.tolist(), np.array(logits)
        assert isinstance(context, list)
        changed[0, list(self.banned(context))] = -math.inf
        return mx.array(changed)

    def banned(self, context: list[Any]) -> Iterator[int]:
        yield from self.options.get("suppress_tokens", ())
        if len(context) - self.prompt < self.options.get("min_tokens", 0):
            yield from self.ends
        newest = context[-self.window :]
        for *begun, last in self.options.get("bad_words", ()):
            if not begun or newest[-len(begun) :] == begun:
                yield last
        n = self.options.get("no_repeat_ngram", len(newest) + 1)
        for end in range(n, len(newest) + 1):
            if newest[end - n : end - 1] == newest[len(newest) - n + 1 :]:
                yield newest[end - 1]


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_obeys(short_model: mlxgen.Model, way: str, rules: str) -> None:
    n = 60 if "slid" in way else 26
    options = {"seed": 4, "max_tokens": n, **WAYS[way], **RULES[rules]}
    options["min_tokens"] = min(options.get("min_tokens", 0), n)
    plain = {name: value for name, value in options.items() if name not in ("lookahead", *BANS)}
    processor = InNumpy(short_model, len(PROMPT), options)
    expected = mlxgen.generate(short_model, PROMPT, logits_processors=[processor], **plain)
    assert mlxgen.generate(short_model, PROMPT, **options).tokens == expected.tokens
    free = mlxgen.generate(short_model, PROMPT, **plain)
    assert free.tokens != expected.tokens  # the rule matters


def test_a_sampled_text_with_a_draft_breaks_no_ban(short_model: mlxgen.Model, draft_model: mlxgen.Model) -> None:
    for seed in range(3):
        options: dict[str, Any] = {"no_repeat_ngram": 2, "bad_words": [[9], [5, 6]], "min_tokens": 60}
        got = mlxgen.generate(
            short_model, PROMPT, draft=draft_model, overflow="slide", max_tokens=60, seed=seed, top_k=5, **options
        )
        assert len(got.tokens) == 60
        processor = InNumpy(short_model, len(PROMPT), options)
        for at, token in enumerate(got.tokens):
            assert token not in set(processor.banned([*PROMPT, *got.tokens[:at]]))


def test_the_rules_cost_the_same_number_of_operations_however_long_the_context_is(model: mlxgen.Model) -> None:
    from mlxgen.sampling.chooser import Chooser

    from ..sampling.test_chooser import operations

    counts = set()
    for length in (1, 10, 60, 5000):
        bans = model_bans(Sampling(no_repeat_ngram=3, bad_words=[[1, 2], [3]]), model, ())
        choose = Chooser(Sampling(), 0, [1] * length, 282, bans=bans)
        counts.add(operations(choose, 1, 282))
    assert len(counts) == 1


# A session, and a batch


def test_min_tokens_counts_each_answer_of_a_session_and_ngrams_its_whole_context(model: mlxgen.Model) -> None:
    end = min(model.end_tokens)
    session = Session(model)
    options: dict[str, Any] = {"temperature": 0, "logit_bias": {end: 100.0}, "max_tokens": 9}
    assert [len(session.generate([5], min_tokens=3, **options).tokens) for _ in range(2)] == [4, 4]
    session = Session(model)
    for _ in range(2):
        session.generate([5, 6], no_repeat_ngram=2, max_tokens=12, temperature=0, ignore_eos=True)
    generated = [tuple(session.tokens[at : at + 2]) for at in range(len(session.tokens) - 1)]
    assert len(set(generated)) >= len(generated) - 1  # only the prompt repeats itself


def test_prompts_of_a_batch_have_their_own_bans(model: mlxgen.Model) -> None:
    rules: list[dict[str, Any]] = [{}, *RULES.values(), {"bad_words": "the"}, {"no_repeat_ngram": 2}]
    prompts = [
        mlxgen.Prompt([1 + at, *PROMPT[: at % 4]], seed=at, max_tokens=30, **rule) for at, rule in enumerate(rules)
    ]
    for answer in mlxgen.batch(model, prompts, batch_size=4):
        prompt: Any = prompts[answer.index]
        assert answer.tokens == mlxgen.generate(model, prompt.prompt, **prompt.options).tokens


# What the options mean for a model


def test_a_text_is_banned_as_it_is_and_after_a_space(model: mlxgen.Model) -> None:
    encode = model.tokenizer.encode
    bans = model_bans(Sampling(bad_words=["king", " frog", [5, 6]]), model, ())
    assert bans.bad_words == (tuple(encode("king")), tuple(encode(" king")), tuple(encode(" frog")), (5, 6))
    assert len(encode(" king")) == 1 and len(encode("king")) > 1
    text = " and the king and the king"
    prompt = text + " and the"
    free = mlxgen.generate(model, prompt, max_tokens=1, temperature=0, logit_bias={encode(" king")[0]: 1000.0})
    assert free.text == " king"
    for word in ("king", " king"):
        got = mlxgen.generate(
            model, prompt, max_tokens=8, temperature=0, bad_words=word, logit_bias={encode(" king")[0]: 1000.0}
        )
        assert encode(" king")[0] not in got.tokens


def test_a_vocabulary_without_a_space_bans_the_text_alone() -> None:
    tiny = tiny_gpt2(tokenizer=letter_tokenizer(list("abc")))
    bans = model_bans(Sampling(bad_words=["ab"]), tiny.model(), ())
    assert bans.bad_words == ((0, 1),)


def test_with_sentencepiece_a_text_is_banned_also_where_no_space_comes_before_it(tmp_path: Path) -> None:
    """Sentencepiece writes a text of its own with a space, and Japanese texts have none."""
    tokenizer, theirs = trained(tmp_path, "T5Tokenizer", "unigram")
    model = replace(tiny_gpt2().model(), tokenizer=tokenizer)
    banned = model_bans(Sampling(bad_words=["日本語"]), model, ()).bad_words
    assert banned == (tuple(theirs.encode("日本語")), tuple(theirs.piece_to_id(list("日本語"))))


def test_what_is_off_bans_nothing(model: mlxgen.Model) -> None:
    off = Sampling(no_repeat_ngram=None, bad_words=[], min_tokens=0, suppress_tokens=())
    assert model_bans(off, model, model.end_tokens) == Bans()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"bad_words": [[5, 282]]}, "bad_words has token 282, but the highest token id is 281"),
        ({"suppress_tokens": [5, 999]}, "suppress_tokens has token 999, but the highest token id is 281"),
        ({"suppress_tokens": range(282)}, "ban every token"),
        ({"suppress_tokens": range(1, 282), "bad_words": [[0]]}, "ban every token"),
        ({"suppress_tokens": range(281), "min_tokens": 1}, "ban every token"),
        ({"bad_words": [[281]]}, "bad_words has the end token 281; ignore_eos goes on after it"),
        ({"bad_words": "<|endoftext|>"}, "bad_words has the end token 281"),
        ({"bad_words": "a\ud800"}, "bad_words has .*invalid character"),
        ({"min_tokens": 9, "max_tokens": 8}, r"min_tokens must be at most max_tokens \(8\), not 9"),
        ({"min_tokens": 300}, r"min_tokens must be at most max_tokens \(256\), not 300"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_step(
    model: mlxgen.Model, options: dict[str, Any], told: str
) -> None:
    for use in (mlxgen.stream, lambda *a, **o: Session(model).stream(a[1], **o), mlxgen.trace):
        own = {name: value for name, value in options.items() if name != "max_tokens" or use is not mlxgen.trace}
        if use is mlxgen.trace and "min_tokens" in told:
            continue
        with pytest.raises(OptionError, match=told) as caught:
            use(model, PROMPT, **own)
        assert "\n" not in str(caught.value)
    with pytest.raises(OptionError, match=told):
        list(mlxgen.batch(model, [PROMPT], **options))
    with pytest.raises(OptionError, match=told):
        list(mlxgen.batch(model, [mlxgen.Prompt(PROMPT, **options)]))


def test_an_end_token_that_ends_nothing_may_be_banned(model: mlxgen.Model) -> None:
    end = min(model.end_tokens)
    for banned in ({"bad_words": [[end]], "ignore_eos": True}, {"suppress_tokens": [end]}):
        got = mlxgen.generate(model, PROMPT, max_tokens=20, temperature=0, logit_bias={end: 1000.0}, **banned)
        assert end not in got.tokens and len(got.tokens) == 20


@pytest.mark.parametrize("way", ["alone", "lookahead", "draft", "batch"])
def test_bans_that_leave_no_token_are_an_error_that_names_them(way: str) -> None:
    """Six letters and three special tokens are nine tokens: then every one has occurred."""
    model = tiny_gpt2(tokenizer=letter_tokenizer(list("abcdef")), n_positions=32).model()
    options: dict[str, Any] = {"no_repeat_ngram": 1, "ignore_eos": True, "seed": 1, "max_tokens": 30}
    with pytest.raises(NumericError, match="step 8: no_repeat_ngram removed every token"):
        if way == "batch":
            list(mlxgen.batch(model, ["a"], **options))
        else:
            guesses: dict[str, Any] = {"lookahead": {"lookahead": True}, "draft": {"draft": model}}.get(way, {})
            mlxgen.generate(model, "a", overflow="slide", **options, **guesses)
    steps = mlxgen.stream(model, "a", **options)
    tokens = []
    with pytest.raises(NumericError, match="no_repeat_ngram"):
        for step in steps:
            tokens.append(step.token)
    assert sorted([0, *tokens]) == list(range(9))  # each once, and what there was is kept
    assert steps.generation.tokens == tokens
