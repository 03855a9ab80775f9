"""Reading and checking the header of a safetensors file, without reading its data.

A file consists of 8 bytes (the length of the header, little-endian), the header (JSON: the type, shape and offsets of
each tensor) and the data. Files are untrusted: every number is checked against the actual file size.

`safetensors.safe_open` makes the same checks, but imports NumPy, which would add 0.1 s to the start of every command.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxgen.dtypes import BY_TAG
from mlxgen.errors import MlxgenError, printable
from mlxgen.regular_file import open_regular

MAX_BYTES = 32 << 20
MAX_BRACES = 100_000  # each tensor has one, and so has each object in a session's notes
MAX_DIMENSIONS = 8


class HeaderError(MlxgenError):
    """A header that is damaged or does not match its file. The message does not include the file name."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """The header's entry of one tensor."""

    dtype: str  # safetensors' tag: "F32", "F16", "BF16", "U32", …
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * BY_TAG[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class Header:
    """The content of a header: the entry of each tensor by its name, and the metadata."""

    tensors: dict[str, TensorEntry]
    metadata: dict[str, str]


def read_header(file: Path) -> Header:
    """Read and check the header of a safetensors file. Raises HeaderError, and OSError for a file that cannot be read.

    The tensors must fill the data without gaps or overlaps, as the safetensors library requires.
    """
    with open_regular(file) as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_BYTES):
            raise HeaderError("not a complete safetensors file (the header is longer than the file)")
        text = stream.read(length)
    if text.count(b"{") > MAX_BRACES:
        raise HeaderError("has far too many tensors")
    try:
        content = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        raise HeaderError("not a safetensors file (the header is not JSON)") from None
    if not isinstance(content, dict):
        raise HeaderError("not a safetensors file (the header is not an object)")
    metadata = content.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise HeaderError("not a safetensors file (the metadata is not text)")
    spans: list[tuple[int, int, str]] = []
    tensors = {name: _checked(name, entry, spans) for name, entry in content.items()}
    _check_spans(spans, size - 8 - length)
    return Header(tensors, metadata)


def _checked(name: str, entry: Any, spans: list[tuple[int, int, str]]) -> TensorEntry:
    """Check one entry of the header. Adds its offsets in the data to ``spans``."""
    where = printable(name)
    try:
        tag, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        whole = all(type(number) is int and number >= 0 for number in [*shape, begin, end])
        dtype = BY_TAG.get(tag)
    except (KeyError, TypeError, ValueError):
        raise HeaderError(f"{where}: the entry in the header is damaged") from None
    if dtype is None:
        raise HeaderError(f"{where}: unknown type {printable(str(tag), 20)}")
    if not whole or len(shape) > MAX_DIMENSIONS or end - begin != math.prod(shape) * dtype.itemsize:
        raise HeaderError(f"{where}: the entry in the header is damaged")
    spans.append((begin, end, where))
    return TensorEntry(tag, tuple(shape))


def _check_spans(spans: list[tuple[int, int, str]], data_bytes: int) -> None:
    """Raise HeaderError if the tensors overlap, leave gaps, or do not end at the end of the file."""
    filled = 0
    for begin, end, where in sorted(spans):
        if begin != filled:
            raise HeaderError(f"{where}: does not begin where the tensor before it ends")
        filled = end
    if filled > data_bytes:
        raise HeaderError(f"the file is cut off ({filled - data_bytes} bytes are missing)")
    if filled < data_bytes:
        raise HeaderError(f"its last {data_bytes - filled} bytes belong to no tensor")
