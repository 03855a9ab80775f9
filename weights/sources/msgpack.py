"""MessagePack, as far as Flax uses it: maps with text keys, lists and plain values; long bytes are left in the file."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import Any

MOST_VALUES = 20_000  # ten times those of GPT-2 XL
MOST_NESTED = 30
MOST_TEXT = 1000
NUMBERS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"} | {
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
CONSTANTS: dict[int, Any] = {0xC0: None, 0xC2: False, 0xC3: True}


class Undecodable(Exception):
    """Bytes that are not MessagePack, or more of it than a checkpoint has."""


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes that are not read. kind: the application's number of their type; None for plain bytes."""

    offset: int
    size: int
    kind: int | None = None


class Reader:
    """Reads values one after another, from a place on, and at most ``most`` of them."""

    def __init__(self, data: bytes | mmap.mmap, at: int = 0, most: int = MOST_VALUES) -> None:
        self.data = data
        self.at = at
        self._left = most

    def value(self, depth: int = 0) -> Any:
        """The value at the reader's place, which moves on. Raises Undecodable."""
        self._left -= 1
        if self._left < 0 or depth > MOST_NESTED:
            raise Undecodable
        first = self._number(1)
        if first < 0x80:
            return first
        if first < 0x90 or first in (0xDE, 0xDF):
            length = first & 15 if first < 0x90 else self._number(2 if first == 0xDE else 4)
            return self._map(length, depth)
        if first < 0xA0 or first in (0xDC, 0xDD):
            length = first & 15 if first < 0xA0 else self._number(2 if first == 0xDC else 4)
            return self._list(length, depth)
        if first < 0xC0 or first in (0xD9, 0xDA, 0xDB):
            return self._text(first & 31 if first < 0xC0 else self._number(1 << (first - 0xD9)))
        if first in CONSTANTS:
            return CONSTANTS[first]
        if first in NUMBERS:
            return struct.unpack(NUMBERS[first], self._bytes(struct.calcsize(NUMBERS[first])))[0]
        if first in (0xC4, 0xC5, 0xC6):
            return self._skipped(self._number(1 << (first - 0xC4)))
        if first in (0xC7, 0xC8, 0xC9):
            size = self._number(1 << (first - 0xC7))
            return self._skipped(size, self._number(1))
        if 0xD4 <= first <= 0xD8:
            kind = self._number(1)
            return self._skipped(1 << (first - 0xD4), kind)
        if first >= 0xE0:
            return first - 0x100
        raise Undecodable

    def _map(self, length: int, depth: int) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for _ in range(length):
            key = self.value(depth + 1)
            if not isinstance(key, str) or key in entries:
                raise Undecodable
            entries[key] = self.value(depth + 1)
        return entries

    def _list(self, length: int, depth: int) -> list[Any]:
        return [self.value(depth + 1) for _ in range(length)]

    def _text(self, length: int) -> str:
        if length > MOST_TEXT:
            raise Undecodable
        try:
            return self._bytes(length).decode()
        except UnicodeDecodeError:
            raise Undecodable from None

    def _skipped(self, size: int, kind: int | None = None) -> Place:
        place = Place(self.at, size, kind)
        self.at += size
        if self.at > len(self.data):
            raise Undecodable
        return place

    def _number(self, size: int) -> int:
        return int.from_bytes(self._bytes(size), "big")

    def _bytes(self, size: int) -> bytes:
        found = self.data[self.at : self.at + size]
        if len(found) < size:
            raise Undecodable
        self.at += size
        return found
