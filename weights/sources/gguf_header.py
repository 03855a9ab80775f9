"""Reading and checking the header of a GGUF file (llama.cpp's format), without reading its data.

    "GGUF", the version (2 or 3), the number of tensors, the number of entries
    entries    name, type, value; the value of a list is its items' type, their number and the items
    tensors    name, sizes (the innermost first), type, offset in the data
    data       each tensor begins at a multiple of the alignment

All numbers are little-endian. A text is its length, 8 bytes, and UTF-8. Files are untrusted: every number is checked
against the actual file size before anything of that size is read or allocated. `mx.load` reads these files too,
but all tensors at once, and a wrong length in the header crashes the process.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mlxgen.errors import MlxgenError, printable
from mlxgen.regular_file import open_regular

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32  # where the file names no other
MAX_HEADER_BYTES = 128 << 20
MAX_ITEMS = 1 << 21  # in all lists together: tokens, their types, merges
MAX_TENSORS = 100_000
MAX_ENTRIES = 10_000  # a GPT-2 has about 30
MAX_DIMENSIONS = 4
MAX_NUMBERS = 1 << 40  # of one tensor
LEAST_ENTRY_BYTES, LEAST_TENSOR_BYTES = 13, 32

TEXT, LIST = 8, 9
#: Type numbers of single values -> how `struct` spells them.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class GGUFError(MlxgenError):
    """A header that is damaged or does not match its file. The message does not include the file name."""


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One tensor as the table describes it. Its type is a number that `gguf_types` knows, or not."""

    type: int
    shape: tuple[int, ...]  # the innermost size last
    begin: int  # in the file


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """The metadata by name, and the table of tensors."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, TableEntry]
    file_bytes: int


def read_gguf_header(file: Path) -> GGUFHeader:
    """Read a header and check all of it but the tensors' sizes in bytes. Raises GGUFError, and OSError."""
    with open_regular(file) as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        reader = _Reader(stream, min(size, MAX_HEADER_BYTES))
        if reader.take(4) != MAGIC:
            raise GGUFError("is not a GGUF file (it does not begin with GGUF)")
        version = reader.number("I")
        if version not in VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
                raise GGUFError("is a GGUF file for big-endian machines; use the little-endian one")
            raise GGUFError(f"is a GGUF file of version {version}; versions 2 and 3 are read")
        n_tensors, n_entries = reader.number("Q"), reader.number("Q")
        if n_tensors > min(MAX_TENSORS, reader.left // LEAST_TENSOR_BYTES):
            raise GGUFError("is damaged (its number of tensors is larger than the file)")
        if n_entries > reader.left // LEAST_ENTRY_BYTES:
            raise GGUFError("is damaged (its number of entries is larger than the file)")
        if n_entries > MAX_ENTRIES:
            raise GGUFError(f"is damaged, or not a GPT-2: its header has {n_entries:,} entries")
        metadata: dict[str, Any] = {}
        for _ in range(n_entries):
            name = reader.text()
            metadata[name] = reader.value(name)
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if type(alignment) is not int or alignment not in (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
            raise GGUFError("is damaged (general.alignment is not a power of two from 8 to 4096)")
        table: dict[str, tuple[int, tuple[int, ...], int]] = {}
        for _ in range(n_tensors):
            name = reader.text()
            if name in table:
                raise GGUFError(f"has {printable(name)} twice")
            table[name] = reader.tensor(name, alignment)
        data = math.ceil(stream.tell() / alignment) * alignment
    tensors = {name: TableEntry(kind, shape, data + offset) for name, (kind, shape, offset) in table.items()}
    outside = next((name for name, entry in tensors.items() if entry.begin > size), None)
    if outside is not None:
        raise GGUFError(f"is cut off, or damaged: {printable(outside)} would begin after its end")
    return GGUFHeader(metadata, tensors, size)


class _Reader:
    """Reads values one after another, and never past the end of the file or of the largest header."""

    def __init__(self, stream: BinaryIO, left: int) -> None:
        self.stream = stream
        self.left = left
        self.items_left = MAX_ITEMS

    def take(self, n_bytes: int) -> bytes:
        if n_bytes > self.left:
            raise GGUFError("is cut off, or damaged: its header is longer than the file")
        self.left -= n_bytes
        data = self.stream.read(n_bytes)
        if len(data) != n_bytes:
            raise GGUFError("is cut off")
        return data

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def text(self) -> str:
        try:
            return self.take(self.number("Q")).decode("utf-8")
        except UnicodeDecodeError:
            raise GGUFError("is damaged (a text in its header is not UTF-8)") from None

    def value(self, name: str) -> Any:
        """The value of an entry: a number, a text, or a list of either."""
        kind = self.number("I")
        if kind == TEXT:
            return self.text()
        if kind != LIST:
            return self.number(self._code(kind, name))
        kind, count = self.number("I"), self.number("Q")
        self.items_left -= count
        if self.items_left < 0:
            raise GGUFError(f"is damaged, or not a GPT-2: {printable(name)} has {count:,} items")
        if kind == TEXT:
            if count * 8 > self.left:
                raise GGUFError("is cut off, or damaged: its header is longer than the file")
            return [self.text() for _ in range(count)]
        code = f"<{count}{self._code(kind, name)}"
        return list(struct.unpack(code, self.take(struct.calcsize(code))))

    def tensor(self, name: str, alignment: int) -> tuple[int, tuple[int, ...], int]:
        """The type, shape and offset of a tensor."""
        n_dimensions = self.number("I")
        if n_dimensions > MAX_DIMENSIONS:
            raise GGUFError(f"is damaged ({printable(name)} has {n_dimensions:,} dimensions)")
        sizes = [self.number("Q") for _ in range(n_dimensions)]
        kind, offset = self.number("I"), self.number("Q")
        if math.prod(sizes) > MAX_NUMBERS or offset % alignment:
            raise GGUFError(f"is damaged (the entry of {printable(name)} in its table is wrong)")
        return kind, tuple(reversed(sizes)), offset

    def _code(self, kind: int, name: str) -> str:
        if kind not in NUMBERS:
            raise GGUFError(f"is damaged ({printable(name)} has a value of an unknown type)")
        return NUMBERS[kind]
