"""The sorted tables of LevelDB, in which TensorFlow keeps the index of a checkpoint: text keys, each with some bytes.

A table consists of blocks of entries, a block of the places of those blocks, and a footer with the place of that one.
The key of an entry is stored without what it shares with the key before it. Tables are untrusted: blocks have to follow
one another, and keys have to be short, few and in order, so that a small file cannot take much time or memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlxgen.weights.files.recognition import TABLE_END
from mlxgen.weights.sources.crc32c import masked_crc32c
from mlxgen.weights.sources.protobuf import Undecodable, varint

FOOTER_BYTES = 48
TRAILER_BYTES = 5  # after each block: its compression, and the checksum of both
COMPRESSIONS = {0: None, 1: "snappy"}
MOST_KEY_BYTES = 300
MOST_ENTRIES = 20_000  # ten times those of GPT-2 XL and its optimizer
AGAIN = "; download it again"
NOT_COMPLETE = f"not a complete TensorFlow index (it is cut off, or has another format){AGAIN}"

Place = tuple[int, int]  # offset and size


class TableError(Exception):
    """A table that is damaged, or compressed; says which."""


def read_table(data: bytes) -> dict[bytes, bytes]:
    """The entries of a table. Raises TableError."""
    if len(data) < FOOTER_BYTES or not data.endswith(TABLE_END):
        raise TableError(NOT_COMPLETE)
    blocks = data[:-FOOTER_BYTES]
    entries: dict[bytes, bytes] = {}
    try:
        _, after = _place(data[-FOOTER_BYTES:], 0)  # of a block that TensorFlow leaves empty
        index, _ = _place(data[-FOOTER_BYTES:], after)
        end, last = 0, b""
        for _, handle in _entries(_block(blocks, index)):
            (offset, size), _ = _place(handle, 0)
            if offset < end:
                raise TableError(f"damaged (its blocks overlap){AGAIN}")
            end = offset + size
            for key, value in _entries(_block(blocks, (offset, size))):
                if entries and key <= last:
                    raise TableError(f"damaged (its keys are not in order){AGAIN}")
                if len(entries) == MOST_ENTRIES:
                    raise TableError("has far too many entries for a GPT-2")
                entries[key] = value
                last = key
    except Undecodable:
        raise TableError(NOT_COMPLETE) from None
    return entries


def _place(data: bytes, at: int) -> tuple[Place, int]:
    offset, at = varint(data, at)
    size, at = varint(data, at)
    return (offset, size), at


def _block(data: bytes, place: Place) -> bytes:
    """The content of a block, whose checksum is right. Raises TableError."""
    offset, size = place
    if offset + size + TRAILER_BYTES > len(data):
        raise TableError(NOT_COMPLETE)
    stored = data[offset : offset + size + 1]
    checksum = int.from_bytes(data[offset + size + 1 : offset + size + TRAILER_BYTES], "little")
    if masked_crc32c(stored) != checksum:
        raise TableError(f"damaged (the checksum of a block is wrong){AGAIN}")
    if stored[-1] != 0:
        name = COMPRESSIONS.get(stored[-1]) or f"method {stored[-1]}"
        raise TableError(f"compressed with {name}, which TensorFlow does not do; save it again with TensorFlow")
    return stored[:-1]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a block. After them come the places where a key is stored whole, and their number."""
    n_restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * n_restarts
    if end < 0:
        raise Undecodable
    at, key = 0, b""
    while at < end:
        shared, at = varint(block, at)
        n_new, at = varint(block, at)
        n_value, at = varint(block, at)
        if shared > len(key) or shared + n_new > MOST_KEY_BYTES or at + n_new + n_value > end:
            raise Undecodable
        key = key[:shared] + block[at : at + n_new]
        at += n_new + n_value
        yield key, block[at - n_value : at]
