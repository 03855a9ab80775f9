"""Headers of safetensors files: what they say, and every lie in them refused, as strictly as by the library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from mlxgen.safetensors_header import HeaderError, TensorEntry, read_header

ARRAYS = {"a": np.zeros((2, 3), np.float32), "b": np.ones(4, np.float16), "c": np.zeros((0, 2), np.int64)}


def written(file: Path, header: object, data: bytes = bytes(8)) -> Path:
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return file


def entry(shape: Any, begin: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def the_library_opens(file: Path) -> bool:
    try:
        with safetensors.safe_open(file, "numpy"):
            return True
    except safetensors.SafetensorError:
        return False


def test_a_header_gives_names_types_shapes_and_metadata(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(save(ARRAYS, {"format": "pt"}))
    header = read_header(file)
    assert header.tensors == {
        "a": TensorEntry("F32", (2, 3)),
        "b": TensorEntry("F16", (4,)),
        "c": TensorEntry("I64", (0, 2)),
    }
    assert {name: tensor.nbytes for name, tensor in header.tensors.items()} == {n: a.nbytes for n, a in ARRAYS.items()}
    assert header.metadata == {"format": "pt"}


def test_a_file_cut_anywhere_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    whole = save(ARRAYS)
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(HeaderError) as caught:
            read_header(file)
        assert "\n" not in str(caught.value)
    assert "1 bytes are missing" in str(caught.value)


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"a": 1},
        {"a": {"dtype": "F32", "shape": [2]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}},
        {"a": entry([2], 8, 0)},
        {"a": entry([-2], 0, 8)},
        {"a": entry(["2"], 0, 8)},
        {"a": entry([2.0], 0, 8)},
        {"a": entry([2**62], 0, 2**64)},
        {"a": entry([3], 0, 8)},
        {"a": entry(None, 0, 8)},
        {"a": entry([2], 0, 8, ["F32"])},
        {"a": entry([2], 0, 8, "X9")},
        {"__metadata__": {"step": 1}, "a": entry([2], 0, 8)},
        {"a": entry([1], 0, 4)},  # and 4 bytes of nobody's
        {"a": entry([1], 4, 8)},
        {"a": entry([2], 0, 8), "b": entry([1], 4, 8)},  # overlapping
        {"a": entry([2], 0, 8), "b": entry([2], 0, 8)},
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, header: object) -> None:
    file = written(tmp_path / "x.safetensors", header)
    assert not the_library_opens(file)
    with pytest.raises(HeaderError):
        read_header(file)


def test_no_name_can_forge_a_message(tmp_path: Path) -> None:
    with pytest.raises(HeaderError, match=r"x\\n\\x1b\[31mError"):
        read_header(written(tmp_path / "x.safetensors", {"x\n\x1b[31mError: fine": entry([3], 0, 8)}))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_of_files_with_changed_bytes_none_is_read_that_the_library_refuses(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = bytearray(save(ARRAYS))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.getbasetemp() / "changed.safetensors"
    file.write_bytes(whole)
    try:
        found = read_header(file).tensors
    except HeaderError as error:
        assert "\n" not in str(error)
        return
    with safetensors.safe_open(file, "numpy") as library:
        slices = {name: library.get_slice(name) for name in library.keys()}  # noqa: SIM118  (not a mapping)
        assert found == {n: TensorEntry(s.get_dtype(), tuple(s.get_shape())) for n, s in slices.items()}
