"""TensorFlow's checkpoints (version 2), read without TensorFlow.

A checkpoint called NAME consists of NAME.index, a sorted table of the tensors' types, shapes, places and checksums, and
NAME.data-00000-of-00001, the numbers; large ones have several files of numbers. The messages in the table are
BundleHeaderProto (under the empty key) and BundleEntryProto of tensorflow/core/protobuf/tensor_bundle.proto.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from mlxgen.dtypes import BY_TAG
from mlxgen.errors import ModelError, printable
from mlxgen.lfs_pointer import check_not_pointer
from mlxgen.regular_file import read_regular
from mlxgen.weights.files.headers import StoredTensor
from mlxgen.weights.sources.checkpoint import LazyTensor
from mlxgen.weights.sources.crc32c import masked_crc32c
from mlxgen.weights.sources.protobuf import Undecodable, fields
from mlxgen.weights.sources.raw_numbers import as_array, mapped_bytes
from mlxgen.weights.sources.sorted_table import TableError, read_table

MAX_INDEX_BYTES = 2 << 20  # GPT-2 XL's, with the optimizer's tensors, has a tenth of that
TAGS = {1: "F32", 14: "BF16", 19: "F16"}  # by the numbers of tensorflow/core/framework/types.proto
MOST_DIMENSIONS = 8


@dataclass(frozen=True, slots=True)
class BundleEntry:
    """One tensor as the index describes it."""

    dtype: int
    shape: tuple[int, ...]
    file: Path
    offset: int
    size: int
    checksum: int
    in_slices: bool  # stored in parts, under other keys


def read_index(index: Path) -> dict[str, BundleEntry]:
    """The tensors of a checkpoint, by name, from its .index file. Raises ModelError."""
    check_not_pointer(index)
    data = read_regular(index, MAX_INDEX_BYTES, "the index of a GPT-2")
    try:
        table = read_table(data)
        n_files = _number_of_files(table.pop(b"", None))
        entries = {key.decode(): _entry(value, index, n_files) for key, value in table.items()}
    except TableError as error:
        raise ModelError(f"{index}: {error}") from None
    except (Undecodable, UnicodeDecodeError):
        raise ModelError(f"{index}: damaged (an entry cannot be decoded); download it again") from None
    if not entries:
        raise ModelError(f"{index}: contains no tensors; download it again")
    return entries


def _number_of_files(header: bytes | None) -> int:
    if header is None:
        raise TableError("not the index of a TensorFlow checkpoint of version 2 (it has no header)")
    found = dict(fields(header))
    number, big_endian = found.get(1, 0), found.get(2, 0)
    if big_endian:
        raise TableError("written on a machine with the other byte order; save it again on a common one")
    if not isinstance(number, int):
        raise Undecodable
    return number


def _entry(message: bytes, index: Path, n_files: int) -> BundleEntry:
    numbers: dict[int, int] = {}
    shape: list[int] = []
    in_slices = False
    for number, value in fields(message):
        if isinstance(value, int):
            numbers[number] = value
        elif number == 2:
            shape = _shape(value)
        in_slices = in_slices or number == 7
    dtype, file, offset, size, checksum = (numbers.get(number, 0) for number in (1, 3, 4, 5, 6))
    if file >= n_files:
        raise Undecodable
    name = f"{index.name.removesuffix('.index')}.data-{file:05d}-of-{n_files:05d}"
    return BundleEntry(dtype, tuple(shape), index.with_name(name), offset, size, checksum, in_slices)


def _shape(message: bytes) -> list[int]:
    """TensorShapeProto's sizes."""
    shape: list[int] = []
    for number, axis in fields(message):
        if number != 2 or not isinstance(axis, bytes) or len(shape) == MOST_DIMENSIONS:
            raise Undecodable
        size = dict(fields(axis)).get(1, 0)
        if not isinstance(size, int):
            raise Undecodable
        shape.append(size)
    return shape


def lazy_tensor(name: str, entry: BundleEntry, shape: tuple[int, ...]) -> LazyTensor:
    """A tensor of the checkpoint in another shape; its checksum is compared when it is read.

    Raises ModelError for a tensor that its file does not hold as numbers of a type that weights have.
    """
    where = f"{entry.file}: {printable(name)}"
    tag = TAGS.get(entry.dtype)
    if tag is None or entry.in_slices:
        how = "in slices" if entry.in_slices else f"as TensorFlow's type {entry.dtype}"
        raise ModelError(f"{where} is stored {how}; save it as one tensor of type float32 with TensorFlow")
    if entry.size != math.prod(entry.shape) * BY_TAG[tag].itemsize:
        raise ModelError(f"{where}: the index has a size that does not fit its shape; download the checkpoint again")
    try:
        held = entry.file.stat().st_size
    except OSError:
        raise ModelError(f"{entry.file}: is missing, and the index lists its tensors; download it") from None
    if entry.offset + entry.size > held:
        check_not_pointer(entry.file)
        raise ModelError(f"{entry.file}: cut off ({printable(name)} ends after its {held:,} bytes); download it again")

    def read() -> mx.array:
        stored = mapped_bytes(entry.file, entry.offset, entry.size)
        if masked_crc32c(stored) != entry.checksum:
            raise ModelError(f"{where} is damaged (its checksum is wrong); download the file again")
        return as_array(stored, tag, shape)

    return LazyTensor(StoredTensor(tag, shape, entry.file), read)
