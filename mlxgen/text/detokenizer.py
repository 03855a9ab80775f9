"""Streaming detokenization: decode tokens one at a time, with the same result as decoding the whole list.

A token's text can depend on its neighbours: a character may consist of several tokens, the first token may lose its
leading space, and a space before a full stop may be removed. Text is returned once no later token can change it.
"""

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from mlxgen.text.spaces import Edit

NOT_A_CHARACTER = "\ufffd"  # stands for bytes that are not a complete character
BYTE_PIECE = re.compile(r"<0x[0-9A-Fa-f+][0-9A-Fa-f]>")  # sentencepiece's name for a single byte


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each of the 256 bytes -> the byte (Radford et al., 2019, `encoder.py`)."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


ALPHABET = byte_alphabet()


def piece_bytes(piece: str) -> bytes:
    """The bytes of a byte-level piece. An added token with characters outside the alphabet is plain text."""
    try:
        return bytes([ALPHABET[character] for character in piece])
    except KeyError:
        return piece.encode()


class TextSource(Protocol):
    """A decoder that takes one token at a time and returns text as soon as it is final."""

    def add(self, token: int) -> str:
        """Add a token; returns the text that became final."""
        ...

    def rest(self) -> str:
        """The remaining text if no more tokens follow. Does not change the state."""
        ...


class ByteText:
    """A source for byte-level BPE: each token is a string of bytes; together they are UTF-8 text, possibly invalid."""

    def __init__(self, piece: Callable[[int], str | None]) -> None:
        self._piece = piece
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        return self._utf8.decode(piece_bytes(self._piece(token) or ""))

    def rest(self) -> str:
        return self._utf8.getstate()[0].decode("utf-8", "replace")


class WindowText:
    """A source for all other decoders: it calls their ``decode`` on a window of the newest tokens.

    The window begins at a token boundary between complete characters, with tokens whose text is final, so that the
    special treatment of the first token affects only these. It moves on whenever all text is final.
    Known exception: GPT-SW3's decoder inserts a space before earlier text when a special token follows; this space is
    left out.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], is_byte: Callable[[int], bool]) -> None:
        self._decode = decode
        self._is_byte = is_byte
        self._ids: list[int] = []
        self._shown = ""  # the part of decode(ids) that was already returned
        self._settled = 0  # how many tokens of the window had final text when it was last moved

    def add(self, token: int) -> str:
        self._ids.append(token)
        if self._is_byte(token):
            return ""  # byte pieces are decoded together: an invalid byte at the end changes the text of all of them
        text = self._decode(self._ids)
        final = text.rstrip(NOT_A_CHARACTER)
        at = final.find(self._shown)  # 0, unless the decoder changes text that it returned before
        if at < 0:
            return ""
        new = final[at + len(self._shown) :]
        self._shown = final
        if final == text:
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
    """A source for decoders whose whole text may depend on the last token: it returns all text at the end."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []

    def add(self, token: int) -> str:
        self._ids.append(token)
        return ""

    def rest(self) -> str:
        return self._decode(self._ids)


def is_local(decoder: Mapping[str, Any]) -> bool:
    """Whether a token affects only the text near it, as in all common decoders of language models.

    decoder: the tokenizers library's description. False if the decoder edits the text after joining the tokens.
    """
    joined = False
    for step in decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]:
        kind = step.get("type")
        one_character = kind == "Replace" and len(step.get("pattern", {}).get("String", "")) == 1
        if kind in ("CTC", "Sequence") or (joined and kind not in ("Fuse", "Strip") and not one_character):
            return False
        joined = joined or kind in ("Fuse", "ByteLevel")
    return True


class StreamingDecoder:
    """The text that each token adds to a growing list of tokens, as soon as it is final.

    edits: changes of the decoded text, in this order. context: the tokens before the first one (the prompt). The
    results of ``add`` and ``flush``, concatenated, are ``decode(context + tokens)`` without the beginning that it has
    in common with ``decode(context)``. So a word after the prompt keeps its leading space, and a character that begins
    in the prompt is returned whole.
    """

    def __init__(
        self, source: TextSource, check: Callable[[int], int], edits: Sequence[Edit] = (), context: Sequence[int] = ()
    ) -> None:
        self._source = source
        self._check = check
        self._edits = edits
        self._known = ""
        for token in context:
            self._advance(token)
        self._known = self._rest()  # the end of the context's text, if it is not final: not part of the result

    def add(self, token: int) -> str:
        """Add a token; returns the text that became final, often "". Raises OptionError for an invalid id."""
        return self._without_context(self._advance(token))

    def flush(self) -> str:
        """The rest of the text. Call it once, after the last token."""
        return self._without_context(self._rest())

    def _advance(self, token: int) -> str:
        text = self._source.add(self._check(token))
        for edit in self._edits:
            text = edit.feed(text)
        return text

    def _rest(self) -> str:
        text = self._source.rest()
        for edit in self._edits:
            text = edit.last(text)
        return text

    def _without_context(self, text: str) -> str:
        """The text without what it has in common with the end of the context's text."""
        if not self._known or not text:
            return text
        same = common_length(self._known, text)
        # After the first difference, all text is new.
        self._known = self._known[same:] if same == len(text) else ""
        return text[same:]


def common_length(a: str, b: str) -> int:
    """The length of the longest common prefix."""
    if b.startswith(a):
        return len(a)
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
