"""score() against transformers, its own definition, and the steps that stream() reports."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mlxgen
from mlxgen.errors import OptionError
from mlxgen.scoring import windows
from mlxgen.weights.hub.names import BUNDLED_FOLDER

from .support import oracles
from .support.models import tiny_gpt2, torch_gpt2

N_POSITIONS = 32


@pytest.fixture(scope="module")
def model(build_model: Callable[..., mlxgen.Model]) -> mlxgen.Model:
    return build_model(n_positions=N_POSITIONS)


@pytest.fixture(scope="module")
def oracle() -> Any:
    return tiny_gpt2(n_positions=N_POSITIONS).torch()


TEXT = "Once upon a time there was the king of a country. He had the horse; the horse had the king, they said: 😀 ü!"


@pytest.mark.parametrize("stride", [1, 7, 16, 31, 32])
def test_perplexity_of_a_long_text_is_that_of_transformers_for_the_same_windows(
    model: mlxgen.Model, oracle: Any, stride: int
) -> None:
    start = model.config.bos_token_id
    assert start is not None
    for bos in (True, False):
        ids = [start] * bos + model.tokenizer.encode(TEXT)
        perplexity, count = oracles.torch_perplexity(oracle, ids, stride)
        ours = mlxgen.score(model, TEXT, stride=stride, bos=bos)
        assert ours.n_scored == count
        assert ours.perplexity == pytest.approx(perplexity, rel=1e-4)
        assert ours.loss == pytest.approx(math.log(perplexity), rel=1e-4)


def test_each_token_has_its_log_probability_and_rank(model: mlxgen.Model, oracle: Any) -> None:
    ids = model.tokenizer.encode("the king said")
    with torch.no_grad():
        logits = oracle(torch.tensor([[model.config.bos_token_id, *ids]])).logits[0, :-1]
    expected = torch.log_softmax(logits, dim=-1)
    ours = mlxgen.score(model, "the king said")
    assert ours.tokens == ids
    for row, token, logprob, rank in zip(expected, ids, ours.logprobs, ours.ranks, strict=True):
        assert logprob == pytest.approx(float(row[token]), abs=1e-4)
        assert rank == 1 + int((row > row[token]).sum())


def test_the_sums_follow_from_the_tokens(model: mlxgen.Model) -> None:
    ours = mlxgen.score(model, "ü the")
    total = sum(logprob for logprob in ours.logprobs if logprob is not None)
    assert ours.total == pytest.approx(total)
    assert ours.loss == pytest.approx(-total / len(ours.tokens))
    assert ours.perplexity == pytest.approx(math.exp(-total / len(ours.tokens)))
    assert ours.n_bytes == 6
    assert ours.bits_per_byte == pytest.approx(-total / math.log(2) / 6)


def test_parts_of_characters_count_with_their_own_bytes(model: mlxgen.Model) -> None:
    frog = model.tokenizer.encode("😀")
    assert len(frog) == 4
    assert mlxgen.score(model, "😀").n_bytes == mlxgen.score(model, frog).n_bytes == 4
    assert mlxgen.score(model, "😀", bos=False).n_bytes == 3
    assert mlxgen.score(model, frog[:2], bos=False).n_bytes == mlxgen.score(model, frog[2:], bos=False).n_bytes == 1
    assert mlxgen.score(model, frog[1:3]).n_bytes == 2
    edges = mlxgen.score(model, "😀" * 20, stride=N_POSITIONS, context="a")  # two windows begin within the text
    assert edges.logprobs.count(None) == 2 and edges.n_bytes == 78
    assert edges.bits_per_byte == pytest.approx(-edges.total / math.log(2) / 78)


def test_tokens_without_bytes_have_no_finite_number_of_bits_for_each() -> None:
    assert mlxgen.Score("", [0], [-1.0], [1], 0).bits_per_byte == math.inf


def test_the_context_is_read_but_not_scored(model: mlxgen.Model) -> None:
    context, text = "the king", " said the"
    both = mlxgen.score(model, context + text, bos=False)
    only = mlxgen.score(model, text, context=context)
    assert only.tokens == model.tokenizer.encode(text)
    assert only.logprobs == pytest.approx(both.logprobs[-len(only.tokens) :], abs=1e-5)


def test_without_a_start_token_the_first_token_is_not_scored(model: mlxgen.Model) -> None:
    ours = mlxgen.score(model, "king", bos=False)
    assert ours.logprobs[0] is None and ours.ranks[0] is None
    assert ours.n_scored == len(ours.tokens) - 1


@pytest.mark.parametrize("options", [{"temperature": 0}, {"seed": 3, "top_k": None}, {"seed": 4, "top_p": 0.5}])
def test_the_steps_of_stream_multiply_to_the_score_of_their_text(
    model: mlxgen.Model, options: dict[str, float]
) -> None:
    steps = list(mlxgen.stream(model, "the king", max_tokens=20, ignore_eos=True, **options))  # type: ignore[arg-type]
    scored = mlxgen.score(model, [step.token for step in steps], context="the king")
    assert sum(step.logprob for step in steps) == pytest.approx(scored.total, abs=1e-4)
    assert [step.logprob for step in steps] == pytest.approx(scored.logprobs, abs=1e-4)


def test_windows_score_every_token_once_and_never_pass_the_end() -> None:
    for n in (1, 2, 9, 10, 11, 25, 40):
        for stride in (1, 3, 10):
            found = list(windows(n, 10, stride))
            assert [token for window in found for token in range(window.first, window.end)] == list(range(n))
            assert all(window.end - window.begin <= 10 for window in found)


@pytest.mark.parametrize("stride", [0, -1, N_POSITIONS + 1, 2.5, True])
def test_a_stride_that_cannot_be_is_refused(model: mlxgen.Model, stride: int) -> None:
    with pytest.raises(OptionError, match="stride must be a whole number from 1 to the model's 32 positions"):
        mlxgen.score(model, "the king", stride=stride)


def test_text_without_a_token_to_score_is_refused(model: mlxgen.Model) -> None:
    with pytest.raises(OptionError, match="nothing to score"):
        mlxgen.score(model, "")
    with pytest.raises(OptionError, match="single token"):
        mlxgen.score(model, [5], bos=False)
    with pytest.raises(OptionError, match="outside the vocabulary"):
        mlxgen.score(model, [10**6])


def test_progress_reaches_the_end(model: mlxgen.Model) -> None:
    seen: list[tuple[int, int]] = []
    ours = mlxgen.score(model, TEXT, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(ours.tokens), len(ours.tokens))


@pytest.mark.skipif(not (BUNDLED_FOLDER / "config.json").is_file(), reason="the bundled model is not built")
def test_perplexity_of_a_long_tale_by_the_bundled_model_is_that_of_transformers() -> None:
    model = mlxgen.load(str(BUNDLED_FOLDER))
    tale = mlxgen.generate(model, "Once upon a time", max_tokens=620, seed=1, overflow="slide", ignore_eos=True).text
    ids = model.tokenizer.encode(tale)
    assert len(ids) > model.config.n_positions
    weights = {name: array.astype(np.float32) for name, array in oracles.parameters(model.decoder).items()}
    theirs = torch_gpt2(json.loads((BUNDLED_FOLDER / "config.json").read_text()), weights)
    for part in (1, 2, 4):
        stride = model.config.n_positions // part
        perplexity, count = oracles.torch_perplexity(theirs, ids, stride)
        ours = mlxgen.score(model, tale, stride=stride, bos=False)
        assert ours.n_scored == count
        assert ours.perplexity == pytest.approx(perplexity, rel=1e-3)
        assert ours.perplexity < 100  # it has learned something


def test_a_total_is_over_the_tokens_of_all_texts_and_no_average_of_averages(model: mlxgen.Model) -> None:
    scores = [mlxgen.score(model, text) for text in ("ü", TEXT, "the king")]
    logprobs = np.array([logprob for score in scores for logprob in score.logprobs], dtype=np.float64)
    n_bytes = sum(len(text.encode()) for text in ("ü", TEXT, "the king"))
    total = mlxgen.sum_scores(scores)
    assert (total.texts, total.n_scored, total.n_bytes) == (3, len(logprobs), n_bytes)
    assert total.total == pytest.approx(logprobs.sum())
    assert total.loss == pytest.approx(-logprobs.mean())
    assert total.perplexity == pytest.approx(np.exp(-logprobs.mean()))
    assert total.bits_per_byte == pytest.approx(-logprobs.sum() / np.log(2) / n_bytes)
    assert total.loss != pytest.approx(np.mean([score.loss for score in scores]))
    parts = mlxgen.sum_scores([mlxgen.sum_scores(scores[:1]), *scores[1:]])
    assert (parts.texts, parts.n_scored, parts.total) == (3, total.n_scored, pytest.approx(total.total))
    assert math.isnan(mlxgen.sum_scores([]).loss)
