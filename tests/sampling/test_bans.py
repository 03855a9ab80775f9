"""The bans against transformers' processors: on arrays of tokens, step after step, and for rows that come and go."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import OptionError
from mlxgen.sampling.bans import Banning, Bans, ban_repeated_ngrams, ban_tokens
from mlxgen.sampling.chooser import Chooser
from mlxgen.sampling.samplers import Sampling, rules

Array = Any  # a NumPy array

V = 9
ENDS = (4, 7)


def random_logits(rows: int, size: int = V, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, size)).astype(np.float32)


def processed(processor: Any, contexts: Sequence[Sequence[int]], logits: Array) -> Array:
    """What a processor of transformers makes of the logits of rows, each by itself, as their lengths differ."""
    import torch

    rows = [
        processor(torch.tensor([list(context)], dtype=torch.long), torch.tensor(row[None])).numpy()
        for context, row in zip(contexts, logits, strict=True)
    ]
    return np.concatenate(rows)


def newest(contexts: Sequence[Sequence[int]], size: int) -> mx.array:
    """The rows' newest tokens, as the bans take them."""
    rows = [list(context)[-size:] for context in contexts]
    return mx.array([[-1] * (size - len(row)) + row for row in rows], dtype=mx.int32)


tokens = st.lists(st.integers(0, 3), min_size=1, max_size=30)


@settings(max_examples=100)
@given(st.lists(tokens, min_size=1, max_size=3), st.integers(1, 6), st.integers(1, 40))
def test_repeated_ngrams_are_those_of_transformers(contexts: list[list[int]], n: int, size: int) -> None:
    from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor

    logits = random_logits(len(contexts))
    kept = [context[-size:] for context in contexts]
    expected = processed(NoRepeatNGramLogitsProcessor(n), kept, logits)
    assert np.array_equal(np.array(ban_repeated_ngrams(mx.array(logits), newest(contexts, size), n)), expected)


words = st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=4), min_size=1, max_size=5)


@settings(max_examples=100)
@given(tokens, st.lists(st.integers(0, 3), max_size=12), words, st.integers(0, 14), st.integers(0, 4))
def test_each_step_of_all_bans_is_that_of_transformers(
    context: list[int], chosen: list[int], bad_words: list[list[int]], min_tokens: int, n: int
) -> None:
    from transformers.generation import logits_process as theirs

    bad_words = [word for word in bad_words if word not in [[end] for end in ENDS]]
    suppressed = [8, 0]
    banning = Banning(
        Bans(
            no_repeat_ngram=n,
            window=50,
            bad_words=tuple(map(tuple, bad_words)),
            min_tokens=min_tokens,
            end_tokens=ENDS,
            suppress_tokens=tuple(suppressed),
        ),
        context,
    )
    processors = {
        "no_repeat_ngram": theirs.NoRepeatNGramLogitsProcessor(n) if n else None,
        "bad_words": theirs.NoBadWordsLogitsProcessor(bad_words, list(ENDS)) if bad_words else None,
        "min_tokens": theirs.MinNewTokensLengthLogitsProcessor(len(context), min_tokens, list(ENDS)),
        "suppress_tokens": theirs.SuppressTokensLogitsProcessor(suppressed),
    }
    for step in range(len(chosen) + 1):
        so_far = context + chosen[:step]
        logits = expected = random_logits(1, seed=step)
        stages = banning.apply(mx.array(logits))
        for name, processor in processors.items():
            if processor is None:
                assert name not in stages
                continue
            expected = processed(processor, [so_far], expected)
            if name in stages:
                assert np.array_equal(np.array(stages[name]), expected), name
            else:
                assert name == "min_tokens" and step >= min_tokens
        banning.remember(mx.array(chosen[step : step + 1] or [0], dtype=mx.uint32))


def test_rows_that_join_and_leave_keep_their_own_tokens_and_counts() -> None:
    from transformers.generation import logits_process as theirs

    rng = np.random.default_rng(2)
    bans = Bans(no_repeat_ngram=2, window=40, bad_words=((1, 2, 3), (2, 2), (0,)), min_tokens=4, end_tokens=ENDS)
    rows: list[tuple[list[int], int]] = []  # the tokens of a row, and how many of them are its prompt
    banning: Banning | None = None
    for step in range(24):
        if step % 3 == 0:
            context = rng.integers(0, 4, 1 + step).tolist()
            other = Banning(bans, context)
            if banning is None:
                banning = other
            else:
                banning.join(other)
            rows.append((context, len(context)))
        if step % 8 == 5:
            order = rng.permutation(len(rows))[1:].tolist()
            assert banning is not None
            banning.keep(order)
            rows = [rows[at] for at in order]
        assert banning is not None
        logits = random_logits(len(rows), seed=step)
        got = list(banning.apply(mx.array(logits)).values())[-1]
        for at, (context, prompt) in enumerate(rows):
            expected = logits[at : at + 1]
            for processor in (
                theirs.NoRepeatNGramLogitsProcessor(2),
                theirs.NoBadWordsLogitsProcessor([[1, 2, 3], [2, 2], [0]], list(ENDS)),
                theirs.MinNewTokensLengthLogitsProcessor(prompt, 4, list(ENDS)),
            ):
                expected = processed(processor, [context], expected)
            assert np.array_equal(np.array(got[at : at + 1]), expected)
        new = rng.integers(0, 4, len(rows))
        banning.remember(mx.array(new.astype(np.uint32)))
        rows = [([*context, int(token)], prompt) for (context, prompt), token in zip(rows, new, strict=True)]


def test_the_window_is_as_wide_as_it_says() -> None:
    """What is further back may come again."""
    context = [1, 2, 0, 0, 0, 0, 1]
    for window, banned in ((7, True), (6, False)):
        banning = Banning(Bans(no_repeat_ngram=2, window=window), context)
        logits = banning.apply(mx.zeros((1, V)))["no_repeat_ngram"]
        assert (logits[0, 2].item() == -math.inf) == banned


def test_a_copy_goes_its_own_way() -> None:
    choose = Chooser(Sampling(temperature=0), 0, [1], V, bans=Bans(no_repeat_ngram=1, window=9, bad_words=((8,),)))
    fork = choose.fork()
    logits = mx.arange(V)[None]
    assert [fork(logits).token.item() for _ in range(4)] == [7, 6, 5, 4]
    assert [choose(logits).token.item() for _ in range(2)] == [7, 6]


def test_a_ban_of_many_tokens_bans_each() -> None:
    assert ban_tokens(mx.zeros((2, 5)), [3, 0]).tolist() == [[-math.inf, 0, 0, -math.inf, 0]] * 2


def test_the_order_and_the_result_of_all_rules_are_those_of_transformers() -> None:
    """From the bias to the last cutoff, for random options: the same processors in the same order, the same numbers."""
    import torch
    from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel
    from transformers.generation import logits_process as theirs

    network = GPT2LMHeadModel(GPT2Config(vocab_size=80, n_embd=8, n_layer=1, n_head=1, n_positions=64))
    names = {
        theirs.SequenceBiasLogitsProcessor: "logit_bias",
        theirs.RepetitionPenaltyLogitsProcessor: "repetition_penalty",
        theirs.NoRepeatNGramLogitsProcessor: "no_repeat_ngram",
        theirs.NoBadWordsLogitsProcessor: "bad_words",
        theirs.MinNewTokensLengthLogitsProcessor: "min_tokens",
        theirs.SuppressTokensLogitsProcessor: "suppress_tokens",
        theirs.TemperatureLogitsWarper: "temperature",
        theirs.TopKLogitsWarper: "top_k",
        theirs.TopPLogitsWarper: "top_p",
        theirs.MinPLogitsWarper: "min_p",
        theirs.TypicalLogitsWarper: "typical_p",
        theirs.EpsilonLogitsWarper: "epsilon_cutoff",
        theirs.EtaLogitsWarper: "eta_cutoff",
    }
    rng = np.random.default_rng(7)
    for case in range(60):
        context = rng.integers(0, 12, int(rng.integers(2, 40))).tolist()
        bias = {int(token): float(rng.normal(0, 3)) for token in rng.choice(80, 3, replace=False)}
        bad_words = [[5], [int(context[-1]), 3], [1, 2, 3]]
        options = {
            "temperature": float(rng.uniform(0.3, 2)),
            "top_k": int(rng.integers(20, 90)),
            "top_p": float(rng.uniform(0.6, 0.99)),
            "min_p": float(rng.uniform(0, 0.1)),
            "typical_p": float(rng.uniform(0.3, 0.99)),
            "epsilon_cutoff": float(rng.uniform(0, 0.05)),
            "eta_cutoff": float(rng.uniform(0, 0.1)),
            "repetition_penalty": float(rng.uniform(0.6, 2)),
        }
        config = GenerationConfig(
            do_sample=True,
            sequence_bias=[[[token], value] for token, value in bias.items()],
            no_repeat_ngram_size=2,
            bad_words_ids=bad_words,
            min_new_tokens=3,
            suppress_tokens=[6, 70],
            **options,
        )
        config._eos_token_tensor = torch.tensor(ENDS)
        processors = network._get_logits_processor(config, input_ids_seq_length=len(context))
        logits = rng.normal(0, 3, (1, 80)).astype(np.float32)
        expected = torch.softmax(processors(torch.tensor([context]), torch.tensor(logits)), dim=-1).numpy()[0]
        sampling = Sampling(**options, logit_bias=bias)
        bans = Bans(2, 64, tuple(map(tuple, bad_words)), 3, ENDS, (6, 70))
        seen: list[str] = []
        choose = Chooser(sampling, case, context, 80, bans=bans, candidates=80, watch=watcher(seen))
        ids, _, got = (np.array(column)[0] for column in choose(mx.array(logits)).top)
        np.testing.assert_allclose(got[np.argsort(ids)], expected, rtol=0, atol=1e-6)
        ours = ["logit_bias", "repetition_penalty", *seen[1:], *(name for name, *_ in rules(sampling))]
        assert [names[type(processor)] for processor in processors] == ours


def watcher(seen: list[str]) -> Callable[..., None]:
    return lambda logits, stages, key, choice: seen.extend(stages)


WRONG: list[tuple[str, list[Any]]] = [
    ("no_repeat_ngram", [0, -1, 2.0, "3", True]),
    ("min_tokens", [-1, 1.5, "3", False]),
    ("bad_words", ["", [""], [[]], 5, [5], b"ab", [[1, -1]], [[1.5]], [["a"]], [[True]], [None], {"a": 1}]),
    ("suppress_tokens", [5, "5", [-1], [1.5], ["a"], [None], [True], b"ab"]),
    ("typical_p", [0, -0.1, 1.01, math.nan, "most", True]),
    ("epsilon_cutoff", [-0.1, 1, math.nan, "some", True]),
    ("eta_cutoff", [-0.1, 1, math.inf, "some", True]),
]


@pytest.mark.parametrize(
    ("name", "value"), [pytest.param(name, value, id=f"{name}={value!r}") for name, values in WRONG for value in values]
)
def test_a_wrong_option_is_told_in_one_line_that_names_it(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=name) as caught:
        Sampling(**{name: value})
    assert "\n" not in str(caught.value)


def test_lists_are_kept_as_tuples_so_that_equal_rules_are_equal() -> None:
    one = Sampling(bad_words=["a", [1, np.int64(2)]], suppress_tokens=[3, 1, 3])  # type: ignore[list-item]
    assert one == Sampling(bad_words=("a", (1, 2)), suppress_tokens=(3, 1))
    assert Sampling(bad_words="a").bad_words == ("a",)
    assert Sampling(bad_words=None, suppress_tokens=None) == Sampling()  # type: ignore[arg-type]
    assert Sampling(suppress_tokens={2}).suppress_tokens == (2,)  # type: ignore[arg-type]
