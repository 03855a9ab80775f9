"""What lookahead guesses, and when it does not."""

from __future__ import annotations

import mlx.core as mx

from mlxgen.generation.cached_context import MOST_GUESSES
from mlxgen.generation.lookahead import LONGEST_PAUSE, NGrams


def guesses_of(grams, most=MOST_GUESSES, known=True):
    return [guess.token.item() for guess in grams.guess(mx.array([0]), known, most, None)]


def test_what_came_after_the_same_tokens_is_guessed_and_a_period_goes_on():
    grams = NGrams([1, 2, 3, 4, 5, 9, 1, 2, 3])
    assert guesses_of(grams) == [4, 5, 9]
    grams.learn(3, 3)
    assert guesses_of(grams) == [4, 5, 9, 1, 2, 3, 4]  # past the end of the context, the guess repeats itself
    grams.learn(7, 7)
    assert len(guesses_of(grams)) == MOST_GUESSES
    assert guesses_of(grams, most=2) == [4, 5]
    assert guesses_of(grams, most=2, known=False) == [5, 9]
    grams.learn(2, 1)
    assert guesses_of(grams) == [4, 5, 9, 1, 2, 3, 4]  # half as many
    for nothing_twice in ([1, 2, 3, 4, 5, 6], [1, 1], [1], [1, 2, 3, 1]):
        assert guesses_of(NGrams(nothing_twice)) == []


def test_the_newest_of_several_continuations_is_guessed_and_three_tokens_say_more_than_two():
    context = [1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3]
    assert guesses_of(NGrams(context), most=1) == [8]
    grams = NGrams([*context, 5, 9, 2, 3, 6, 1, 2, 3])
    assert guesses_of(grams, most=1) == [5]


def test_after_an_exchanged_word_it_goes_on_with_what_came_after_that_word():
    context = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]
    grams = NGrams(context)
    assert guesses_of(grams) == [3, 4, 5]
    context += [3, 4, 20]  # and not 5
    grams.learn(3, 2)
    assert guesses_of(grams) == [6, 7, 8]


def test_after_wrong_guesses_there_are_fewer_and_fewer():
    grams, tried = NGrams([1, 2, 3, 4, 1, 2, 3]), 0
    for _ in range(600):
        if guesses_of(grams):
            grams.learn(3, 0)
            tried += 1
    assert 600 // (LONGEST_PAUSE + 1) <= tried < 20


def test_a_kind_of_match_that_failed_does_not_hold_back_a_better_one():
    context = [1, 2, 3, 4, 5, 6, 9, 2, 3]
    grams = NGrams(context)
    for _ in range(9):  # only two tokens are alike
        if guesses_of(grams):
            grams.learn(3, 0)
    assert guesses_of(grams) == []
    context += [7, 1, 2, 3]
    assert guesses_of(grams) == [4, 5, 6]
