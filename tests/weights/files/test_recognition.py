"""Files and folders that are no models are told apart, and each message says what opens them."""

from __future__ import annotations

import ast
import json
import shlex
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import mlxgen
from mlxgen.errors import ModelError
from mlxgen.weights import convert
from mlxgen.weights.files.recognition import recognise_file

from ...support.models import tiny_gpt2

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548118077\n"


def told(use: Callable[[str], object], path: Path) -> str:
    with pytest.raises(ModelError) as error:
        use(str(path))
    assert "\n" not in str(error.value)
    return str(error.value)


def rust_archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"")


def packed(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("gpt2/config.json", b"{}")


WRITERS: dict[str, tuple[str, Callable[[Path], object], str, str]] = {
    "before GGUF": ("gpt2.bin", lambda p: p.write_bytes(b"tjgg\3\0\0\0"), "from before GGUF", "Hugging Face model"),
    "llm.c": (
        "tokens.bin",
        lambda p: p.write_bytes(np.array([20240520, 1], "<i4").tobytes()),
        "llm.c",
        "gpt2_124M.bin",
    ),
    "keras": (
        "weights.dat",
        lambda p: p.write_bytes(b"\x89HDF\r\n\x1a\n" + b"\0" * 9),
        "HDF5",
        "load_tf2_checkpoint_in_pytorch_model",
    ),
    "onnx": ("model.onnx", lambda p: p.write_bytes(b"\x08\x07"), "ONNX", "exported from"),
    "rust": ("rust_model.ot", rust_archive, "rust-bert", "pytorch_model.bin"),
    "tflite": ("64.tflite", lambda p: p.write_bytes(b"\x1c\0\0\0TFL3"), "TensorFlow Lite", "exported from"),
    "web page": ("model.bin", lambda p: p.write_bytes(b"\n<!DOCTYPE html><html>"), "a web page", "hf download"),
    "numpy": ("weights.npz", lambda p: np.savez(p, a=np.ones(2)), "NumPy", "state dict"),
    "archive": ("gpt2.zip", packed, "an archive", "unpack"),
    "saved model": ("saved_model.pb", lambda p: p.write_bytes(b"\x08\1"), "TensorFlow program", "exported from"),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_of_another_program_is_named_with_what_opens_it(tmp_path: Path, kind: str) -> None:
    name, write, what, way_out = WRITERS[kind]
    path = tmp_path / "there" / name
    path.parent.mkdir()
    write(path)
    for use in (mlxgen.load, convert):
        message = told(use, path)
        assert what in message and way_out in message, message
        assert "download it again" not in message and "mlxgen convert gpt2" not in message


@pytest.mark.parametrize("kind", sorted(WRITERS.keys() - {"keras", "web page", "archive"}))
def test_a_folder_of_such_a_file_says_the_same(tmp_path: Path, kind: str) -> None:
    name, write, what, way_out = WRITERS[kind]
    write(tmp_path / name)
    assert what in told(mlxgen.load, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1}')
    for use in (mlxgen.load, convert):
        message = told(use, tmp_path)
        assert what in message and way_out in message, message


def test_the_command_that_turns_hdf5_into_safetensors_is_a_python_program(tmp_path: Path) -> None:
    folder = tmp_path / "Anna's model"
    folder.mkdir()
    file = folder / "tf_model.h5"
    file.write_bytes(b"")
    (folder / "config.json").write_text('{"model_type": "gpt2", "n_head": 2}')
    for source in (folder, file):
        install, program, after = told(convert, source).split("`")[1::2]
        assert install.startswith("pip install 'transformers<5' torch ")
        *_, script, first, second = shlex.split(program)
        lines = ast.unparse(ast.parse(script)).splitlines()
        assert lines[2].startswith("from transformers.modeling_tf_pytorch_utils import")
        assert lines[3] == "load(M(C.from_pretrained(sys.argv[1])), sys.argv[2]).save_pretrained('OUT')"
        assert [first, second] == [str(folder), str(file)]
        assert shlex.split(after) == ["mlxgen", "convert", "OUT", "--vocab", str(folder)]


def test_pytorch_files_and_their_folders_are_sent_to_convert(tmp_path: Path) -> None:
    for legacy in (False, True):
        path = tmp_path / "ckpt.pt"
        torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=not legacy)
        assert f"mlxgen convert {path}" in told(mlxgen.load, path)
        assert f"mlxgen convert {path}" in told(mlxgen.load, tmp_path)


def test_a_safetensors_file_alone_is_sent_to_its_folder_or_to_convert(tmp_path: Path) -> None:
    save_file({"a": np.ones(2)}, tmp_path / "model.safetensors")
    message = told(mlxgen.load, tmp_path / "model.safetensors")
    assert "folder that contains it" in message and "mlxgen convert" in message


def test_the_commands_in_errors_run_as_printed_for_names_with_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "Anna's models"
    folder.mkdir()
    file = folder / "my model.gguf"
    file.write_bytes(b"GGUF" + bytes(20))
    deepspeed = folder / "check point"
    deepspeed.mkdir()
    (deepspeed / "zero_to_fp32.py").touch()
    part = deepspeed / "zero_pp_rank_0_mp_rank_00_model_states.pt"
    part.touch()
    pickled = folder / "pickled model"
    pickled.mkdir()
    (pickled / "config.json").write_text('{"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1}')
    torch.save({"a": torch.ones(2)}, pickled / "pytorch_model.bin")
    for use, given, wanted in (
        (mlxgen.load, file, ["mlxgen", "convert", str(file)]),
        (mlxgen.load, folder, ["mlxgen", "convert", str(file)]),
        (mlxgen.load, pickled, ["mlxgen", "convert", str(pickled)]),
        (mlxgen.load, deepspeed, ["mlxgen", "convert", str(deepspeed)]),
        (convert, part, ["python", f"{deepspeed}/zero_to_fp32.py", str(deepspeed), f"{deepspeed}/whole"]),
    ):
        assert shlex.split(told(use, given).split("`")[1]) == wanted


def test_a_folder_with_only_pytorch_weights_names_them(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1}')
    (tmp_path / "model.onnx").write_bytes(b"\x08\x07")
    torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    message = told(mlxgen.load, tmp_path)
    assert "only PyTorch weights (pytorch_model.bin)" in message


def test_what_training_leaves_beside_the_weights_is_not_taken_for_them(tmp_path: Path) -> None:
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "random_states_0.pkl"):
        torch.save({"step": 3}, tmp_path / name)
    for use in (mlxgen.load, convert):
        assert told(use, tmp_path) == f"{tmp_path}: has no config.json, so it is not a model folder"
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1}')
    for use in (mlxgen.load, convert):
        message = told(use, tmp_path)
        assert "has no weights (model.safetensors, " in message and "mlxgen convert" not in message


def test_a_json_file_is_not_taken_for_damaged_weights(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "gpt2"}')
    message = told(convert, config)
    assert "is a JSON file" in message and "give the folder that contains it" in message


def test_a_folder_of_adapters_says_how_one_is_used(tmp_path: Path) -> None:
    adapter = tmp_path / "my checkpoint-500"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    for use in (mlxgen.load, convert):
        assert shlex.split(told(use, tmp_path).split("`")[1]) == ["--adapter", str(adapter)]


def test_a_training_run_names_its_newest_checkpoint(tmp_path: Path) -> None:
    import os

    for step in (500, 1000):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "config.json").write_text("{}")
        os.utime(tmp_path / f"checkpoint-{step}" / "config.json", (step, step))
        os.utime(tmp_path / f"checkpoint-{step}", (step, step))
    assert f"{tmp_path}/checkpoint-1000" in told(mlxgen.load, tmp_path)


def test_an_adapter_is_no_model_but_is_used_with_one(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "openai-community/gpt2"}')
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    message = told(mlxgen.load, tmp_path)
    assert f"mlxgen generate -m openai-community/gpt2 --adapter {tmp_path}" in message
    assert f"mlxgen convert openai-community/gpt2 --adapter {tmp_path}" in told(convert, tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
def test_a_git_lfs_pointer_in_place_of_any_file_is_said_to_be_one(tmp_path: Path, name: str) -> None:
    folder = tiny_gpt2().write(tmp_path / "a model", chat_template="x")
    (folder / name).write_text(POINTER)
    for use in (mlxgen.load, convert):
        message = told(use, folder)
        assert f"{name}: is a Git LFS pointer" in message
        assert f"git -C '{folder}' lfs pull" in message and "download" not in message


def test_a_git_lfs_pointer_in_place_of_a_checkpoint_or_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "ckpt.pt").write_text(POINTER)
    for use in (mlxgen.load, convert):
        assert "Git LFS pointer" in told(use, tmp_path / "ckpt.pt")
    folder = tiny_gpt2().write(tmp_path / "tales")
    (folder / "tokenizer.json").unlink()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    shutil.copy(tmp_path / "ckpt.pt", folder / "pytorch_model.bin")
    assert "Git LFS pointer" in told(convert, folder)
    for name in ("vocab.json", "merges.txt"):
        (folder / name).write_text(POINTER)
    tiny_gpt2().write(tmp_path / "whole")
    shutil.copy(tmp_path / "whole" / "model.safetensors", folder)
    assert "Git LFS pointer" in told(mlxgen.load, folder)


def test_a_model_file_is_not_taken_for_something_else(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"a": 1}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    assert recognise_file(tmp_path / "config.json") is None and recognise_file(tmp_path / "merges.txt") is None
    assert recognise_file(tmp_path / "nothing") is None
