"""The encoding of Protocol Buffers, as far as the index of a TensorFlow checkpoint uses it."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5  # the wire types
MOST_BITS = 63


class Undecodable(Exception):
    """Bytes that are not an encoded message."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at a place, and the place after it. Raises Undecodable."""
    number = 0
    for shift in range(0, MOST_BITS, 7):
        if at >= len(data):
            break
        number |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return number, at
    raise Undecodable


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in order: number, and value. Negative numbers are not decoded. Raises Undecodable."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        wire_type = key & 7
        if wire_type == VARINT:
            value, at = varint(message, at)
            yield key >> 3, value
            continue
        if wire_type == LENGTH:
            size, at = varint(message, at)
        elif wire_type in (EIGHT_BYTES, FOUR_BYTES):
            size = 8 if wire_type == EIGHT_BYTES else 4
        else:
            raise Undecodable
        content = message[at : at + size]
        if len(content) < size:
            raise Undecodable
        at += size
        yield key >> 3, content if wire_type == LENGTH else int.from_bytes(content, "little")
