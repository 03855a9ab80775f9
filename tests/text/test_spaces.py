"""Spaces that decoding leaves between tokens: in pieces as in the whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.text.spaces import IdeographJoiner, Replacer, join_ideographs


@settings(max_examples=200)
@given(st.lists(st.text(alphabet=" '.x", max_size=3), max_size=8), st.sampled_from([" ' ", " .", " 'x", "..", "xx"]))
def test_replacing_in_pieces_is_replacing_in_the_whole(pieces: list[str], old: str) -> None:
    replacer = Replacer(old, "y")
    shown = "".join(replacer.feed(piece) for piece in pieces)
    assert shown + replacer.last("") == "".join(pieces).replace(old, "y")


@settings(max_examples=300)
@given(st.lists(st.text(alphabet=" 中国，のa“", max_size=3), max_size=8))
def test_joining_in_pieces_is_joining_in_the_whole(pieces: list[str]) -> None:
    joiner, whole = IdeographJoiner(), join_ideographs("".join(pieces))
    shown = ""
    for piece in pieces:
        shown += joiner.feed(piece)
        assert whole.startswith(shown)
    assert shown + joiner.last("") == whole


@pytest.mark.parametrize(
    ("decoded", "text"),
    [
        ("中 国 的 ， 北 京 。", "中国的，北京。"),
        ("日 本 の 東 京", "日本の東京"),
        ("“ 你 好 ” ， 他 说", "“你好”，他说"),
        ("hello 中 国 2023 年 far away", "hello 中国 2023 年 far away"),
        ("안녕 하세요 far away . !", "안녕 하세요 far away . !"),
    ],
)
def test_only_chinese_characters_and_their_punctuation_are_joined(decoded: str, text: str) -> None:
    assert join_ideographs(decoded) == text
