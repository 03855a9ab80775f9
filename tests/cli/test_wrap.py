"""Text on a terminal is broken between words, whole or as it comes, and commands that can be copied are not broken."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxgen.cli.wrap import LONG_WORD, StreamWrapper, cells, wrapped

from .running import Screen, on_terminal

TALE = "There was once a king who had a golden apple tree in his garden, and each night an apple was missing. " * 3


def streamed(text: str, width: int, size: int) -> str:
    wrapper = StreamWrapper(width)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return "".join([*map(wrapper.next, pieces), wrapper.rest()])


@pytest.mark.parametrize("width", [30, 40, 80])
@pytest.mark.parametrize("size", [1, 3, 50])
def test_lines_are_those_of_the_standard_library(width: int, size: int) -> None:
    expected = textwrap.wrap(TALE, width)
    assert [line.rstrip() for line in streamed(TALE, width, size).split("\n") if line.strip()] == expected
    assert [line.rstrip() for line in wrapped(TALE, width).split("\n") if line.strip()] == expected


@given(st.text(alphabet="ab \n王", max_size=200), st.integers(1, 7))
def test_only_line_breaks_are_added_and_only_spaces_lost(text: str, size: int) -> None:
    shown = streamed(text, 40, size)
    assert shown.replace(" ", "").replace("\n", "") == text.replace(" ", "").replace("\n", "")
    if all(cells(word) <= LONG_WORD for word in text.split()):
        assert all(cells(line.rstrip()) <= 40 for line in shown.split("\n"))


def test_a_word_that_surely_fits_is_shown_at_once_and_one_that_may_not_waits() -> None:
    wrapper = StreamWrapper(40)
    assert wrapper.next("Once up") == "Once up"
    assert wrapper.next("on a time by the s") == "on a time by the"
    assert wrapper.next("ea") == "" and wrapper.next(" there") == " sea"
    assert wrapper.next(" lived a prin") == " there lived\na prin"
    assert wrapper.next("cess ") == "cess"


def test_a_word_without_end_is_not_held_back_for_ever() -> None:
    wrapper = StreamWrapper(40)
    shown = [wrapper.next(character) for character in "Once upon a time he said " + "a" * 200 + " b"]
    assert "".join(shown[:120]).count("a") > 80 and shown[100] == "a"
    assert "".join(shown) + wrapper.rest() == "Once upon a time he said\n" + "a" * 200 + "\nb"


def test_a_command_in_backquotes_stays_on_one_line() -> None:
    text = "reading PyTorch weights needs torch: `pip3 --python /a/b/c/bin/python install torch`"
    assert "`pip3 --python /a/b/c/bin/python install torch`" in wrapped(text, 40).split("\n")


def test_later_lines_are_indented() -> None:
    assert wrapped("/set NAME  change an option of the answers", 24, 11) == (
        "/set NAME  change an\n           option of the\n           answers"
    )


def test_an_error_on_a_terminal_breaks_between_words_and_columns_0_is_no_width() -> None:
    code, output = on_terminal("-m", "mlxgen", "generate", "-m", "/there/is/no/such/model", "x", columns=30)
    assert code == 1
    assert output.split() == ["Error:", "/there/is/no/such/model:", "no", "such", "folder"]
    assert all(len(line) <= 30 for line in Screen(output, 30).lines)
