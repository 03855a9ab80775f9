"""Tokens to text one at a time, exactly as decoding the whole list at once would give it.

A token's text can depend on its neighbours: a character may be spread over several tokens, the first token may
lose its leading space, a space before a full stop may be cleaned away. Text is shown once no later token can
change it.
"""

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from mlxgen.text.stop_text import unfinished

# What transformers replaces in decoded text, in this order, where clean_up_tokenization_spaces is set.
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
NOT_A_CHARACTER = "\ufffd"  # what bytes that are not (yet) a character decode to
BYTE_PIECE = re.compile(r"<0x[0-9A-Fa-f+][0-9A-Fa-f]>")  # sentencepiece's name for a single byte


def clean_up_spaces(text: str) -> str:
    """The whole text with the spaces removed that word pieces leave before punctuation and contractions."""
    for old, new in CLEAN_UP:
        text = text.replace(old, new)
    return text


def byte_alphabet() -> dict[str, int]:
    """GPT-2's stand-ins: one printable character for each of the 256 bytes (Radford et al., 2019, `encoder.py`)."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


_ALPHABET = byte_alphabet()


def piece_bytes(piece: str) -> bytes:
    """The bytes a byte-level piece stands for. An added token outside the alphabet is plain text."""
    try:
        return bytes([_ALPHABET[character] for character in piece])
    except KeyError:
        return piece.encode()


class TextSource(Protocol):
    """Tokens in, text out as soon as it is certain."""

    def add(self, token: int) -> str: ...

    def rest(self) -> str:
        """What would follow if no token came any more. Changes nothing."""
        ...


class ByteText:
    """Byte-level BPE: every token is some bytes, and their concatenation is UTF-8, more or less."""

    def __init__(self, piece: Callable[[int], str | None]) -> None:
        self._piece = piece
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        return self._utf8.decode(piece_bytes(self._piece(token) or ""))

    def rest(self) -> str:
        return self._utf8.getstate()[0].decode("utf-8", "replace")


class WindowText:
    """Any other decoder, through its own ``decode`` on a window of the newest tokens.

    The window starts with tokens whose text is settled, so that the first token's special treatment falls on
    them, and at a place where no character was half done. It moves on whenever the text is certain again.
    The one known exception is GPT-SW3's, which puts a space before text already given out when a special token
    follows it: the space is left out then.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], is_byte: Callable[[int], bool]) -> None:
        self._decode = decode
        self._is_byte = is_byte
        self._ids: list[int] = []
        self._shown = ""  # the part of decode(ids) that came out already
        self._settled = 0  # tokens of the window whose text was certain at the last such moment

    def add(self, token: int) -> str:
        self._ids.append(token)
        if self._is_byte(token):
            return ""  # a run of byte pieces is decoded as one: a bad byte at its end spoils all of it
        text = self._decode(self._ids)
        sure = text.rstrip(NOT_A_CHARACTER)
        at = sure.find(self._shown)  # 0, but for a decoder that edits what it gave before
        if at < 0:
            return ""
        new = sure[at + len(self._shown) :]
        self._shown = sure
        if sure == text:
            self._move(text)
        return new

    def rest(self) -> str:
        text = self._decode(self._ids)
        return text[common_length(self._shown, text) :]

    def _move(self, text: str) -> None:
        newest = self._ids[self._settled :]
        tail = self._decode(newest)
        if tail and text.endswith(tail):
            self._ids, self._shown = newest, tail
        self._settled = len(self._ids)


class WholeText:
    """A decoder that can still change its first character at the last token: all its text comes at the end."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []

    def add(self, token: int) -> str:
        self._ids.append(token)
        return ""

    def rest(self) -> str:
        return self._decode(self._ids)


def is_local(decoder: Mapping[str, Any]) -> bool:
    """Whether a token changes only the text around it, as in every decoder in use for language models.

    decoder: the tokenizers library's description. It is not so where the joined text is edited once more.
    """
    joined = False
    for step in decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]:
        kind = step.get("type")
        one_character = kind == "Replace" and len(step.get("pattern", {}).get("String", "")) == 1
        if kind in ("CTC", "Sequence") or (joined and kind not in ("Fuse", "Strip") and not one_character):
            return False
        joined = joined or kind in ("Fuse", "ByteLevel")
    return True


class Replacer:
    """``str.replace`` on a text that arrives in pieces."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new
        self._held = ""

    def feed(self, text: str) -> str:
        *done, last = (self._held + text).split(self._old)
        safe = len(last) - unfinished(last, (self._old,))
        self._held = last[safe:]
        return self._new.join([*done, last[:safe]])

    def last(self, text: str) -> str:
        """What comes out if the text ends with ``text``. Changes nothing."""
        return (self._held + text).replace(self._old, self._new)


class StreamingDecoder:
    """Text of a growing list of tokens: what each token adds, as soon as it is certain.

    ``context`` are the tokens before (the prompt). The pieces from ``add`` and ``flush``, concatenated, are
    ``decode(context + tokens)`` without the beginning it has in common with ``decode(context)``: a word after the
    prompt keeps its leading space, and a character the prompt left half done appears whole.
    """

    def __init__(
        self, source: TextSource, check: Callable[[int], int], clean_up: bool, context: Sequence[int] = ()
    ) -> None:
        self._source = source
        self._check = check
        self._replacers = [Replacer(old, new) for old, new in CLEAN_UP] if clean_up else []
        self._known = ""
        for token in context:
            self._advance(token)
        self._known = self._rest()  # the context's own text that is not certain yet: not to be shown again

    def add(self, token: int) -> str:
        """The text that is certain now and was not before, often "". OptionError for an id that does not exist."""
        return self._beyond(self._advance(token))

    def flush(self) -> str:
        """The rest of the text, when no token follows. Call it once, at the end."""
        return self._beyond(self._rest())

    def _advance(self, token: int) -> str:
        text = self._source.add(self._check(token))
        for replacer in self._replacers:
            text = replacer.feed(text)
        return text

    def _rest(self) -> str:
        text = self._source.rest()
        for replacer in self._replacers:
            text = replacer.last(text)
        return text

    def _beyond(self, text: str) -> str:
        if not self._known or not text:
            return text
        same = common_length(self._known, text)
        # Where the two part, all that follows is new.
        self._known = self._known[same:] if same == len(text) else ""
        return text[same:]


def common_length(a: str, b: str) -> int:
    """Length of the longest common beginning."""
    if b.startswith(a):
        return len(a)
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
