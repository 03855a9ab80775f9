"""MessagePack is read as its specification says, and what a checkpoint does not have is refused."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from mlxgen.weights.sources.msgpack import MOST_NESTED, MOST_VALUES, Place, Reader, Undecodable

LONG = b"x" * 300

# From the specification's table of formats.
CASES: list[tuple[bytes, Any]] = [
    (b"\x07", 7),
    (b"\xff", -1),
    (b"\xe0", -32),
    (b"\xcc\xff", 255),
    (b"\xcd\x01\x00", 256),
    (b"\xce\x00\x01\x00\x00", 65536),
    (b"\xcf" + bytes([0, 0, 0, 1, 0, 0, 0, 0]), 2**32),
    (b"\xd0\x80", -128),
    (b"\xd1\xff\x00", -256),
    (b"\xd2\xff\xff\x00\x00", -65536),
    (b"\xd3" + b"\xff" * 8, -1),
    (b"\xca" + struct.pack(">f", 1.5), 1.5),
    (b"\xcb" + struct.pack(">d", 0.1), 0.1),
    (b"\xc0", None),
    (b"\xc2", False),
    (b"\xc3", True),
    (b"\xa2\xc3\xa4", "ä"),
    (b"\xd9\x28" + b"a" * 40, "a" * 40),
    (b"\xda\x01\x2c" + LONG, LONG.decode()),
    (b"\xdb\x00\x00\x01\x2c" + LONG, LONG.decode()),
    (b"\x93\x01\x02\x03", [1, 2, 3]),
    (b"\xdc\x00\x02\x01\x02", [1, 2]),
    (b"\xdd\x00\x00\x00\x01\x90", [[]]),
    (b"\x82\xa1a\x01\xa1b\x80", {"a": 1, "b": {}}),
    (b"\xde\x00\x01\xa1a\x01", {"a": 1}),
    (b"\xdf\x00\x00\x00\x01\xa1a\x01", {"a": 1}),
    (b"\xc4\x02ab", Place(2, 2)),
    (b"\xc5\x01\x2c" + LONG, Place(3, 300)),
    (b"\xc6\x00\x00\x01\x2c" + LONG, Place(5, 300)),
    (b"\xd4\x01a", Place(2, 1, 1)),
    (b"\xd8\x01" + b"a" * 16, Place(2, 16, 1)),
    (b"\xc7\x03\x01abc", Place(3, 3, 1)),
    (b"\xc8\x01\x2c\x01" + LONG, Place(4, 300, 1)),
    (b"\xc9\x00\x00\x01\x2c\x01" + LONG, Place(6, 300, 1)),
]


@pytest.mark.parametrize(("data", "value"), CASES, ids=lambda case: repr(case)[:20])
def test_every_format(data: bytes, value: Any) -> None:
    reader = Reader(data)
    found = reader.value()
    assert found == value and type(found) is type(value) and reader.at == len(data)
    for end in range(len(data)):
        with pytest.raises(Undecodable):
            Reader(data[:end]).value()


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",  # never used
        b"\x81\x01\x01",  # a key that is no text
        b"\x82\xa1a\x01\xa1a\x01",  # a key twice
        b"\xa1\xff",  # not UTF-8
        b"\xda\xff\xff" + b"a" * 65535,  # a text far too long
        b"\x91" * (MOST_NESTED + 2) + b"\x01",
        b"\xdd\xff\xff\xff\xff" + b"\x01" * (MOST_VALUES + 1),
        b"\xc6\xff\xff\xff\xffab",
    ],
)
def test_what_is_refused(data: bytes) -> None:
    with pytest.raises(Undecodable):
        Reader(data).value()
