"""Stop texts: what is shown does not depend on how the text arrived."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import OptionError
from mlxgen.text.stop_text import StopText

few_letters = st.text(alphabet="ab\n😀", max_size=14)
stop_lists = st.lists(st.text(alphabet="ab\n😀", min_size=1, max_size=4), max_size=4)


def up_to_first_stop(text: str, stops: list[str]) -> str:
    """The definition, character by character: the stop text that is complete first, the longest of several."""
    for end in range(1, len(text) + 1):
        complete = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(complete)]
    return text


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


@settings(max_examples=400, deadline=None, derandomize=True)
@given(few_letters, stop_lists, st.lists(st.integers(0, 14), max_size=6))
def test_shown_text_ends_before_the_first_complete_stop_text_for_any_split(text, stops, cuts):
    stop = StopText(stops)
    shown = "".join(stop.feed(piece) for piece in pieces_of(text, cuts))
    expected = up_to_first_stop(text, stops)
    assert expected.startswith(shown)  # nothing is ever taken back
    assert stop.hit == any(one in text for one in stops)
    assert shown + stop.flush() == expected


@settings(max_examples=300, deadline=None, derandomize=True)
@given(few_letters, stop_lists)
def test_text_is_held_back_no_longer_than_it_may_become_a_stop_text(text, stops):
    stop = StopText(stops)
    shown = "".join(stop.feed(character) for character in text)
    if not stop.hit:
        held = text[len(shown) :]
        assert not held or any(one.startswith(held) for one in stops)


def test_nothing_follows_a_hit():
    stop = StopText("END")
    assert stop.feed("one EN") == "one "
    assert stop.feed("D two") == ""
    assert stop.hit
    assert (stop.feed(" three"), stop.flush()) == ("", "")


def test_a_single_text_is_one_stop_text_and_not_its_characters():
    stop = StopText("ab")
    assert stop.feed("bb a") + stop.flush() == "bb a"
    assert not stop.hit


def test_without_stop_texts_everything_passes_at_once():
    stop = StopText()
    assert stop.feed("abc") == "abc"
    assert stop.flush() == ""


@pytest.mark.parametrize("stops", [[""], "", ["ab", ""], [3]])
def test_an_empty_stop_text_is_an_error(stops):
    with pytest.raises(OptionError, match="stop text"):
        StopText(stops)
