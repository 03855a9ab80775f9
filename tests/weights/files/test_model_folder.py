"""The weight files of a model folder, from its index or without one, and the tensors in their headers."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mlxgen.errors import ModelError
from mlxgen.weights.files.headers import StoredTensor, main_dtype, read_headers
from mlxgen.weights.files.model_folder import weight_files


def small_file(folder: Path, name: str = "model.safetensors", **arrays: np.ndarray) -> Path:
    save_file(arrays or {"a": np.zeros((2, 3), np.float32), "b": np.ones(4, np.float16)}, folder / name)
    return folder / name


def test_headers_give_names_types_shapes_and_files(tmp_path: Path) -> None:
    file = small_file(tmp_path)
    stored = read_headers([file])
    assert stored == {"a": StoredTensor("F32", (2, 3), file), "b": StoredTensor("F16", (4,), file)}
    assert main_dtype(stored.values()).name == "float32"


def test_a_file_cut_anywhere_is_refused_with_its_name_in_one_line(tmp_path: Path) -> None:
    file = small_file(tmp_path)
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"model\.safetensors: .*; download it again$"):
            read_headers([file])


def write_index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_are_those_of_the_index(tmp_path: Path) -> None:
    first = small_file(tmp_path, "model-00001-of-00002.safetensors", a=np.zeros(2, np.float32))
    second = small_file(tmp_path, "model-00002-of-00002.safetensors", b=np.zeros(2, np.float32))
    small_file(tmp_path, "model-old.safetensors")
    write_index(tmp_path, {"a": first.name, "b": second.name})
    assert weight_files(tmp_path) == [first, second]
    assert {name: tensor.file for name, tensor in read_headers(weight_files(tmp_path)).items()} == {
        "a": first,
        "b": second,
    }
    second.unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors, which is missing"):
        weight_files(tmp_path)


@pytest.mark.parametrize(
    "weight_map", [{}, None, [], {"a": 1}, {"a": "../model.safetensors"}, {"a": "/etc/passwd"}, {"a": ".."}]
)
def test_an_index_that_names_no_files_beside_it_is_refused(tmp_path: Path, weight_map: object) -> None:
    write_index(tmp_path, weight_map)
    with pytest.raises(ModelError, match=r"index\.json"):
        weight_files(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    small_file(tmp_path, "model-1.safetensors")
    small_file(tmp_path, "model-2.safetensors")
    with pytest.raises(ModelError, match="in both model-1"):
        read_headers(weight_files(tmp_path))


def test_pytorch_weights_only_point_to_convert(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"mlxgen convert .*install torch"):
        weight_files(tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match="has no weights"):
        weight_files(tmp_path)
