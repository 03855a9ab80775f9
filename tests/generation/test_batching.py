"""batch(): every answer is the one that generate() gives alone, whatever stands beside it."""

import gc
import importlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxgen
from mlxgen import device
from mlxgen.errors import ContextError, NumericError, OptionError
from mlxgen.generation.batching import Failure, fitting_batch_size, outcomes
from mlxgen.network.batch_cache import BatchCache
from mlxgen.network.cache import KVCache
from mlxgen.network.decoder import GPT2
from mlxgen.sampling.chooser import Chooser

from ..support import oracles
from ..support.models import tiny_gpt2

N_POSITIONS = 24
PROMPTS = ["the king", "a", "", "the horse of the king", "x" * 23, [5, 6, 7], "y" * 24, "so it was"]

MIXES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"seed": 3, "top_k": None, "top_p": 0.9},
    "end tokens": {"seed": 11, "temperature": 2.0, "top_k": None, "ignore_eos": False},
    "penalties": {"seed": 1, "repetition_penalty": 1.3, "logit_bias": {3: 2.0}, "logprobs": 2},
    "bans": {"seed": 2, "no_repeat_ngram": 2, "bad_words": "e", "suppress_tokens": [5], "min_tokens": 4, "logprobs": 2},
    "bans, sliding": {"seed": 2, "no_repeat_ngram": 1, "overflow": "slide", "max_tokens": 40, "eta_cutoff": 0.01},
    "rotating": {"seed": 5, "max_kv_size": 7, "keep": 2},
    "sliding": {"seed": 6, "overflow": "slide", "keep": 2, "max_tokens": 40},
    "rotating and sliding": {"temperature": 0, "overflow": "slide", "max_kv_size": 9, "keep": 3, "max_tokens": 40},
}


@pytest.fixture(scope="module")
def model(build_model: Callable[..., mlxgen.Model]) -> mlxgen.Model:
    return build_model(n_positions=N_POSITIONS)


@pytest.mark.parametrize("mix", MIXES)
def test_each_answer_is_that_of_generate_alone(model: mlxgen.Model, mix: str) -> None:
    options = {"max_tokens": 12, "ignore_eos": True, **MIXES[mix]}
    alone = [mlxgen.generate(model, prompt, **options) for prompt in PROMPTS]
    for batch_size in (2, 16):
        together = list(mlxgen.batch(model, PROMPTS, batch_size=batch_size, ordered=True, **options))
        assert [answer.index for answer in together] == list(range(len(PROMPTS)))
        for ours, expected in zip(together, alone, strict=True):
            assert ours.tokens == expected.tokens
            assert (ours.text, ours.finish_reason, ours.prompt) == (
                expected.text,
                expected.finish_reason,
                expected.prompt,
            )
            assert ours.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
            assert [[c.token for c in row] for row in ours.candidates] == [
                [c.token for c in row] for row in expected.candidates
            ]


def test_greedy_tokens_are_those_of_transformers(model: mlxgen.Model) -> None:
    oracle = tiny_gpt2(n_positions=N_POSITIONS).torch()
    prompts = [[1, 2, 3], [4], [9, 8, 7, 6, 5, 4, 3]]
    for answer in mlxgen.batch(model, prompts, temperature=0, max_tokens=10, ignore_eos=True):
        assert answer.tokens == oracles.torch_greedy(oracle, prompts[answer.index], 10)


def test_shuffled_and_split_inputs_give_the_same_answers(model: mlxgen.Model) -> None:
    rng = random.Random(0)
    requests = [
        mlxgen.Prompt(
            "".join(rng.choices("abc the", k=rng.randint(1, 20))),
            max_tokens=rng.randint(1, 9),
            seed=rng.randrange(1000),
            temperature=rng.choice([0, 0.7, 1.2]),
        )
        for _ in range(30)
    ]
    whole = {a.index: a.tokens for a in mlxgen.batch(model, requests, batch_size=5)}
    places = list(range(30))
    for batch_size in (2, 16):
        rng.shuffle(places)
        for part in (places[:11], places[11:]):
            for answer in mlxgen.batch(model, [requests[at] for at in part], batch_size=batch_size):
                assert answer.tokens == whole[part[answer.index]]


def test_answers_come_when_they_are_finished_or_in_order(model: mlxgen.Model) -> None:
    requests = [mlxgen.Prompt("a", max_tokens=n) for n in (9, 2, 5)]
    options = {"ignore_eos": True, "batch_size": 3}
    assert [a.index for a in mlxgen.batch(model, requests, **options)] == [1, 2, 0]  # type: ignore[arg-type]
    assert [a.index for a in mlxgen.batch(model, requests, ordered=True, **options)] == [0, 1, 2]  # type: ignore[arg-type]


def test_prompts_are_read_only_as_rows_become_free(model: mlxgen.Model) -> None:
    taken = []

    def prompts() -> Iterator[str]:
        for number in range(100):
            taken.append(number)
            yield "the king"

    answers = mlxgen.batch(model, prompts(), batch_size=4, max_tokens=3)
    next(answers)
    assert len(taken) <= 8


def test_samples_share_the_prefill_and_have_the_seeds_of_generate(
    model: mlxgen.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = []
    hidden = GPT2.hidden

    def watched(self: Any, ids: Any, cache: Any = None) -> Any:
        if ids.shape[1] > 1:
            prompts.append(ids.tolist())
        return hidden(self, ids, cache)

    monkeypatch.setattr(GPT2, "hidden", watched)
    answers = list(mlxgen.batch(model, ["the king"], num_samples=5, seed=9, max_tokens=6, batch_size=2, ordered=True))
    assert prompts == [[model.tokenizer.encode("the king")]]
    monkeypatch.undo()
    from mlxgen.generation.request import sample_seeds

    assert [a.sample for a in answers] == [0, 1, 2, 3, 4]
    assert [a.seed for a in answers] == sample_seeds(9, 5)
    for answer in answers:
        assert answer.tokens == mlxgen.generate(model, "the king", seed=answer.seed, max_tokens=6).tokens


def test_unwanted_samples_are_skipped(model: mlxgen.Model) -> None:
    request = mlxgen.Prompt("a", seed=1, num_samples=4, skip=frozenset({0, 2}))
    assert [a.sample for a in mlxgen.batch(model, [request], ordered=True, max_tokens=2)] == [1, 3]


def test_stop_texts_end_their_own_row(model: mlxgen.Model) -> None:
    free = mlxgen.generate(model, "the king", temperature=0, max_tokens=12, ignore_eos=True)
    stop = model.tokenizer.decode(free.tokens[4:6])
    requests = [mlxgen.Prompt("the king", stop=stop), "the king"]
    options = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    stopped, whole = mlxgen.batch(model, requests, ordered=True, **options)  # type: ignore[arg-type]
    expected = mlxgen.generate(model, "the king", stop=stop, **options)  # type: ignore[arg-type]
    assert (stopped.text, stopped.tokens, stopped.finish_reason) == (expected.text, expected.tokens, "stop")
    assert whole.tokens == free.tokens


def test_a_prompt_that_fails_does_not_stop_the_others(model: mlxgen.Model) -> None:
    passed_on = OptionError("as it came")
    prompts = ["a", "z" * 25, passed_on, mlxgen.Prompt("a", top_k=0), [10**6], mlxgen.Prompt("a", keep=1)]
    found = list(outcomes(model, [*prompts, "b"], ordered=True, max_tokens=2))
    assert [isinstance(outcome, Failure) for outcome in found] == [False, True, True, True, True, True, False]
    errors = [outcome.error for outcome in found if isinstance(outcome, Failure)]
    assert isinstance(errors[0], ContextError) and errors[1] is passed_on
    assert "keep can only be set for the whole batch" in str(errors[-1])
    with pytest.raises(ContextError, match="25 tokens"):
        list(mlxgen.batch(model, prompts[:2]))


def test_a_row_with_damaged_logits_fails_alone(model: mlxgen.Model) -> None:
    from mlxgen.sampling import chooser

    real = chooser.Chooser.__call__

    def sometimes(self: Any, logits: Any) -> Any:
        return real(self, logits * float("nan") if self._candidates else logits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chooser.Chooser, "__call__", sometimes)
        found = list(outcomes(model, [mlxgen.Prompt("a", logprobs=1), "b"], max_tokens=3, ordered=True))
    assert isinstance(found[0], Failure) and isinstance(found[0].error, NumericError)
    assert not isinstance(found[1], Failure) and len(found[1].tokens) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, not 0"),
        ({"num_samples": 0}, "num_samples must be a whole number of at least 1, not 0"),
        ({"keep": -1}, "keep must be"),
        ({"progress": print}, "progress is not available in a batch"),
        ({"typo": 1}, "unknown option 'typo'"),
        ({"max_tokens": 0}, "max_tokens must be"),
    ],
)
def test_bad_options_are_told(model: mlxgen.Model, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        list(mlxgen.batch(model, ["a"], **options))


def test_the_batch_size_follows_the_memory(model: mlxgen.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    row = model.config.cache_bytes_per_token(4) * N_POSITIONS + 8 * 4 * model.config.vocab_size
    for free, expected in ((0, 1), (2 * 5 * row, 5), (10**12, 32)):
        monkeypatch.setattr(device, "free_memory", lambda free=free: free)
        assert fitting_batch_size(model) == expected


def test_mlx_lms_batch_generator_runs_on_our_decoder(model: mlxgen.Model) -> None:
    mlx_lm_generate = importlib.import_module("mlx_lm.generate")
    prompts = [[1, 2, 3], [4], [9, 8, 7, 6, 5]]
    generator = mlx_lm_generate.BatchGenerator(model.decoder, max_tokens=8)
    numbers = generator.insert(prompts)
    made: dict[int, list[int]] = {number: [] for number in numbers}
    while responses := generator.next_generated():
        for response in responses:
            made[response.uid].append(response.token)
    for answer in mlxgen.batch(model, prompts, temperature=0, max_tokens=8, ignore_eos=True):
        assert made[numbers[answer.index]] == answer.tokens


@pytest.mark.parametrize(
    ("length", "options"),
    [(N_POSITIONS - 1, {"max_tokens": 1}), (N_POSITIONS, {"max_tokens": 2, "overflow": "slide"})],
    ids=["answers of one token", "rows that slide at once"],
)
def test_memory_stays_flat_where_no_step_is_needed(model: mlxgen.Model, length: int, options: dict[str, Any]) -> None:
    held = []
    for answer in mlxgen.batch(model, ["x" * length] * 100, batch_size=2, ignore_eos=True, **options):
        if answer.index % 10 == 9:
            mx.synchronize()  # what is still being computed does not count
            held.append(mx.get_active_memory())
    row = model.config.cache_bytes_per_token(4) * N_POSITIONS
    assert len(held) == 10 and min(held[5:]) - min(held[:5]) < row


def test_the_peak_of_memory_is_that_of_the_whole_batch(model: mlxgen.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    resets: list[int] = []
    reset = mx.reset_peak_memory
    monkeypatch.setattr(mx, "reset_peak_memory", lambda: (resets.append(1), reset()))
    peaks = [answer.peak_memory for answer in mlxgen.batch(model, PROMPTS, batch_size=2, max_tokens=3)]
    assert len(resets) == 1
    assert peaks == sorted(peaks)
    mlxgen.generate(model, "a", max_tokens=2)
    assert len(resets) == 2


@pytest.mark.parametrize(
    "rules", [{"temperature": 0}, {"seed": 7}, {"seed": 7, "repetition_penalty": 1.3, "logprobs": 2}]
)
def test_rows_with_the_same_rules_share_one_choice_and_get_what_they_get_alone(
    model: mlxgen.Model, monkeypatch: pytest.MonkeyPatch, rules: dict[str, Any]
) -> None:
    rows: list[int] = []
    choose = Chooser.__call__
    monkeypatch.setattr(
        Chooser, "__call__", lambda self, logits, *guess: (rows.append(len(logits)), choose(self, logits, *guess))[1]
    )
    options = {"max_tokens": 8, "ignore_eos": True, **rules}
    together = list(mlxgen.batch(model, PROMPTS, batch_size=len(PROMPTS), ordered=True, overflow="slide", **options))
    assert max(rows) == len(PROMPTS) and rows.count(1) <= 8  # those of rows that slide by themselves
    monkeypatch.undo()
    for prompt, answer in zip(PROMPTS, together, strict=True):
        alone = mlxgen.generate(model, prompt, overflow="slide", **options)
        assert answer.tokens == alone.tokens and answer.text == alone.text
        np.testing.assert_allclose(answer.logprobs, alone.logprobs, atol=1e-5)


def test_a_shared_beginning_is_processed_once(model: mlxgen.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []
    hidden = GPT2.hidden

    def watched(self: Any, ids: Any, cache: Any = None) -> Any:
        shapes.append(tuple(ids.shape))
        return hidden(self, ids, cache)

    beginning = list(range(1, 11))
    prompts = [[*beginning, 20], [*beginning, 30, 31], [*beginning, 40, 41, 42]]
    alone = [mlxgen.generate(model, prompt, temperature=0, max_tokens=4).tokens for prompt in prompts]
    monkeypatch.setattr(GPT2, "hidden", watched)
    together = [answer.tokens for answer in mlxgen.batch(model, prompts, temperature=0, max_tokens=4, ordered=True)]
    assert together == alone
    assert shapes[:2] == [(1, 10), (3, 3)]


def test_a_finished_row_makes_room_without_moving_others(model: mlxgen.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    moves: list[tuple[int, int]] = []
    close = BatchCache.close_gaps

    def watched(self: BatchCache) -> list[tuple[int, int]]:
        found = close(self)
        moves.extend(found)
        return found

    monkeypatch.setattr(BatchCache, "close_gaps", watched)
    prompts = [mlxgen.Prompt([1, 2, n + 3], max_tokens=2 + n % 3, temperature=0, ignore_eos=True) for n in range(12)]
    answers = list(mlxgen.batch(model, prompts, batch_size=4, ordered=True))
    assert len(moves) <= 3  # only at the end, when no prompt takes the place of a finished one
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.tokens == mlxgen.generate(model, prompt.prompt, **prompt.options).tokens


def test_the_buffers_of_a_batch_have_little_unused_room() -> None:
    cache, row = BatchCache(1, most_rows=5), KVCache(growth=1)
    row.update_and_fetch(mx.zeros((1, 2, 60, 8)), mx.zeros((1, 2, 60, 8)))
    cache.expect(3)
    for _ in range(3):
        (slot,) = cache.reserve(1)
        cache.join(slot, [row], 0, 60, 60, 0)
        assert cache.layers[0].pair.shape[0] == 3  # from the first one on, so that nothing is copied
    for filled in range(61, 700):
        cache.begin_step()
        cache.layers[0].update_pair(mx.zeros((3, 4, 1, 8)))
        buffer = cache.layers[0].pair
        assert buffer is not None and buffer.shape[2] < filled * 5 / 4 + 64
        mx.eval(buffer)
    assert cache.filled(0) == 699
    (slot,) = cache.reserve(1)
    cache.join(slot, [row], 0, 60, 60, 0)
    assert cache.layers[0].pair.shape[0] == 5  # doubled, but no more than ever come


def test_a_row_that_joins_brings_room_for_the_positions_to_come_but_no_more_than_for_64():
    row = KVCache(growth=1)
    row.update_and_fetch(mx.zeros((1, 2, 60, 8)), mx.zeros((1, 2, 60, 8)))
    for to_come, positions in ((0, 64), (4, 64), (5, 128), (68, 128), (1000, 128)):
        cache = BatchCache(1, most_rows=1)
        (slot,) = cache.reserve(1)
        cache.join(slot, [row], 0, 60, 60, to_come)
        assert cache.layers[0].pair.shape[2] == positions


def test_a_batch_that_is_left_early_frees_its_memory_at_once(model: mlxgen.Model) -> None:
    gc.collect()
    gc.disable()
    try:
        mx.synchronize()
        before = mx.get_active_memory()
        prompts = [mlxgen.Prompt([1, 2, 3], max_tokens=2), *[[1, 2, 3]] * 7]
        answers = mlxgen.batch(model, prompts, batch_size=8, max_tokens=20, ignore_eos=True)
        next(answers)
        mx.synchronize()
        assert mx.get_active_memory() > before + 8 * 64 * model.config.cache_bytes_per_token(4) / 2
        del answers
        mx.synchronize()  # what is still being computed does not count
        assert mx.get_active_memory() < before + 2**16
    finally:
        gc.enable()
