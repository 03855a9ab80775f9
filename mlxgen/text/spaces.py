"""Removing the spaces that a decoder leaves between tokens, from a whole text and from one that arrives in pieces."""

import re
from typing import Protocol

from mlxgen.text.stop_text import unfinished

# transformers' replacements in decoded text if clean_up_tokenization_spaces is set, in this order.
CLEAN_UP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)

# Chinese characters as BERT's tokenizer knows them, each a word of its own, and the punctuation of Chinese.
IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"
ALONE = IDEOGRAPHS + "\u3001-\u3003\u3008-\u3011\u3014-\u301b\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
BESIDE = ALONE + "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u2014\u2018-\u201d\u2026\u00b7"  # kana, quotes, dashes
# Compiled when they are first used: that takes longer than starting without them.
SPLIT = f"(?<=[{ALONE}]) (?=[{BESIDE}])|(?<=[{BESIDE}]) (?=[{ALONE}])"
BEFORE_SPACE = f"[{BESIDE}] "


class Edit(Protocol):
    """A change of a text that arrives in pieces."""

    def feed(self, text: str) -> str:
        """Add text; returns the edited text that is final."""
        ...

    def last(self, text: str) -> str:
        """The remaining output if the text ends with ``text``. Does not change the state."""
        ...


class Replacer:
    """``str.replace`` for text that arrives in pieces."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new
        self._pending = ""

    def feed(self, text: str) -> str:
        *done, last = (self._pending + text).split(self._old)
        safe = len(last) - unfinished(last, (self._old,))
        self._pending = last[safe:]
        return self._new.join([*done, last[:safe]])

    def last(self, text: str) -> str:
        return (self._pending + text).replace(self._old, self._new)


class IdeographJoiner:
    """``join_ideographs`` for text that arrives in pieces."""

    def __init__(self) -> None:
        self._before = ""  # the newest character given out
        self._pending = ""  # a space after it that may go

    def feed(self, text: str) -> str:
        text = join_ideographs(self._before + self._pending + text)[len(self._before) :]
        whole = self._before + text
        self._pending = " " if text and re.fullmatch(BEFORE_SPACE, whole[-2:]) else ""
        text = text[: len(text) - len(self._pending)]
        self._before = text[-1:] or self._before
        return text

    def last(self, text: str) -> str:
        return join_ideographs(self._before + self._pending + text)[len(self._before) :]


def clean_up_spaces(text: str) -> str:
    """Remove the spaces that word-piece tokenizers leave before punctuation and contractions in a whole text."""
    for old, new in CLEAN_UP:
        text = text.replace(old, new)
    return text


def join_ideographs(text: str) -> str:
    """Remove single spaces between Chinese characters, and between them and kana or Chinese punctuation."""
    return re.sub(SPLIT, "", text)
