"""Indexes of TensorFlow checkpoints that say something impossible are refused before anything is allocated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlxgen.errors import ModelError
from mlxgen.weights.sources.tensorflow_bundle import MAX_INDEX_BYTES, lazy_tensor, read_index

from ...support.leveldb_tables import block, entry, masked, table, varint

NUMBERS = np.arange(6, dtype="<f4")


def field(number: int, value: int | bytes) -> bytes:
    """A field of a message of Protocol Buffers."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def described(
    dtype: int = 1, shape: tuple[int, ...] = (2, 3), shard: int = 0, offset: int = 0, size: int = 24, extra: bytes = b""
) -> bytes:
    """A BundleEntryProto."""
    sizes = b"".join(field(2, field(1, length)) for length in shape)
    numbers = ((1, dtype), (3, shard), (4, offset), (5, size))
    checksum = varint(6 << 3 | 5) + masked(NUMBERS.tobytes())
    return field(2, sizes) + b"".join(field(at, value) for at, value in numbers) + checksum + extra


def written(folder: Path, message: bytes, header: bytes | None = b"\x08\x01") -> Path:
    index = folder / "model.ckpt.index"
    first = [] if header is None else [entry(0, b"", header)]
    index.write_bytes(table(block(*first, entry(0, b"model/wte", message))))
    (folder / "model.ckpt.data-00000-of-00001").write_bytes(NUMBERS.tobytes())
    return index


def opened(index: Path) -> object:
    name, found = next(iter(read_index(index).items()))
    return lazy_tensor(name, found, found.shape).read()


def test_a_tensor_is_read_as_it_is_described(tmp_path: Path) -> None:
    assert np.array_equal(np.array(opened(written(tmp_path, described()))), NUMBERS.reshape(2, 3))


BAD = {
    "text": (described(dtype=7), "as TensorFlow's type 7"),
    "slices": (described(extra=field(7, b"")), "in slices"),
    "another size than the shape's": (described(size=20), "a size that does not fit its shape"),
    "more numbers than there are": (described(shape=(2**40, 2**40)), "does not fit its shape"),
    "numbers after the end": (described(offset=4), "cut off"),
    "numbers far after the end": (described(offset=2**62), "cut off"),
    "a file of numbers that there cannot be": (described(shard=1), "cannot be decoded"),
    "too many axes": (described(shape=(1,) * 9), "cannot be decoded"),
    "a shape that is no message": (field(2, b"\x12\x05a"), "cannot be decoded"),
    "half a field": (described() + b"\x12", "cannot be decoded"),
    "an unknown kind of field": (b"\x0b", "cannot be decoded"),
}


@pytest.mark.parametrize("case", BAD)
def test_impossible_entries(tmp_path: Path, case: str) -> None:
    message, told = BAD[case]
    with pytest.raises(ModelError, match=told) as caught:
        opened(written(tmp_path, message))
    assert str(tmp_path) in str(caught.value)


def test_headers_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no header"):
        opened(written(tmp_path, described(), None))
    with pytest.raises(ModelError, match="byte order"):
        opened(written(tmp_path, described(), field(1, 1) + field(2, 1)))
    with pytest.raises(ModelError, match="cannot be decoded"):
        opened(written(tmp_path, described(), field(1, b"x")))
    with pytest.raises(ModelError, match=r"data-00000-of-00002: is missing"):
        opened(written(tmp_path, described(), field(1, 2)))
    with pytest.raises(ModelError, match="larger than 2 MB"):
        index = tmp_path / "model.ckpt.index"
        index.write_bytes(bytes(MAX_INDEX_BYTES + 1))
        read_index(index)


def test_numbers_that_begin_anywhere_in_the_file(tmp_path: Path) -> None:
    index = written(tmp_path, described(offset=3))
    (tmp_path / "model.ckpt.data-00000-of-00001").write_bytes(b"abc" + NUMBERS.tobytes())
    assert np.array_equal(np.array(opened(index)), NUMBERS.reshape(2, 3))
