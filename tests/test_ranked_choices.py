"""Ranked choices and accuracy, by their definition. tests/test_lm_eval.py compares them with the harness's own."""

import math
from collections.abc import Callable
from typing import Any

import pytest

import mlxgen
from mlxgen.continuations import score_continuations
from mlxgen.errors import OptionError


@pytest.fixture(scope="module")
def model(build_model: Callable[..., mlxgen.Model]) -> mlxgen.Model:
    return build_model()


def ranked(totals: list[float], choices: list[str], answer: int | None = None) -> mlxgen.RankedChoices:
    return mlxgen.RankedChoices(choices, [mlxgen.Score("", [0], [total], [1], 1) for total in totals], answer)


def test_each_choice_is_scored_after_the_context(model: mlxgen.Model) -> None:
    found = mlxgen.rank_choices(model, "the king", [" said", " had the horse"], answer=" had the horse")
    assert found.choices == [" said", " had the horse"] and found.answer == 1
    for score, text in zip(found.scores, found.choices, strict=True):
        expected = mlxgen.score(model, text, context="the king")
        assert score.logprobs == pytest.approx(expected.logprobs, abs=1e-5) and score.ranks == expected.ranks
        assert (score.text, score.tokens, score.n_bytes) == (expected.text, expected.tokens, expected.n_bytes)


def test_a_context_that_is_too_long_is_cut_or_read_in_windows(model: mlxgen.Model) -> None:
    long = [7, 8, 9] * 40
    cut = mlxgen.rank_choices(model, long, [[1, 2], [3]])
    expected = dict(score_continuations(model, [(long, [1, 2]), (long, [3])]))
    assert [score.total for score in cut.scores] == pytest.approx([expected[0].logprob, expected[1].logprob])
    windows = mlxgen.rank_choices(model, long, [[1, 2], [3]], stride=32)
    assert windows.scores[0] == mlxgen.score(model, [1, 2], context=long, stride=32)
    with pytest.raises(OptionError, match="stride must be"):
        mlxgen.rank_choices(model, "the", [" king"], stride=65)


def test_without_a_context_choices_follow_the_start_token_or_nothing(model: mlxgen.Model) -> None:
    choices = ["the king", "a frog"]
    for bos in (True, False):
        found = mlxgen.rank_choices(model, "", choices, bos=bos)
        expected = [mlxgen.score(model, choice, bos=bos).total for choice in choices]
        assert [score.total for score in found.scores] == pytest.approx(expected, abs=1e-5)


def test_the_delimiter_is_scored_and_counts_for_no_length(model: mlxgen.Model) -> None:
    with_space = mlxgen.rank_choices(model, "the king", [" said", " had"])
    apart = mlxgen.rank_choices(model, "the king", ["said", "had"], delimiter=" ")
    assert [score.total for score in apart.scores] == [score.total for score in with_space.scores]
    assert apart.choices == ["said", "had"]


def test_rankings_are_by_likelihood_and_by_that_per_character_and_byte() -> None:
    found = ranked([-6.0, -8.0, -12.0], ["ab", "üü", "abcdef"], answer=2)
    assert found.ranking == [0, 1, 2]  # -6, -8, -12
    assert found.ranking_per_character == [2, 0, 1]  # -2, -3, -4
    assert found.ranking_per_byte == [1, 2, 0]  # -2 (4 bytes, first of two), -2, -3
    assert (found.acc, found.acc_norm, found.acc_bytes) == (0, 1, 0)
    assert ranked([-1.0, -1.0], ["a", "b"]).ranking == [0, 1]
    assert ranked([-1.0], ["a"]).acc is None


def test_accuracy_is_the_share_of_known_answers_that_come_first() -> None:
    questions = [
        ranked([-1.0, -2.0], ["a", "abcd"], answer=0),  # -1, -0.5 per character
        ranked([-1.0, -2.0], ["a", "b"], answer=0),
        ranked([-1.0, -2.0], ["a", "b"], answer=1),
        ranked([-1.0, -2.0], ["a", "b"]),
    ]
    assert mlxgen.accuracy(questions) == mlxgen.Accuracy(3, pytest.approx(2 / 3), pytest.approx(1 / 3), 1 / 3)
    assert math.isnan(mlxgen.accuracy([]).acc)


@pytest.mark.parametrize(
    ("choices", "answer", "message"),
    [
        ([], None, "choices must be a list"),
        ("ab", None, "choices must be a list"),
        (5, None, "choices must be a list"),
        (["a", ""], None, "choice 1 is empty"),
        (["a", 5], None, "choice 1 must be text or token ids, not 5"),
        (["a", "b"], 2, "answer must be the number of a choice, from 0 to 1, or its text, not 2"),
        (["a", "b"], "c", "not 'c'"),
        (["a", "b"], True, "not True"),
        (["a", "b"], -1, "not -1"),
    ],
)
def test_choices_and_answers_that_make_no_question_are_refused(
    model: mlxgen.Model, choices: Any, answer: Any, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        mlxgen.rank_choices(model, "the king", choices, answer=answer)
