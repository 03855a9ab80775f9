"""PyTorch files: transformers' .bin in each layout, bare state dicts, and pickles that would run code."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch

import mlxgen
from mlxgen.errors import ModelError
from mlxgen.installation import install_command
from mlxgen.weights import convert
from mlxgen.weights.sources.pytorch import read_pickle

from ...support import oracles
from ...support.models import published, tiny_gpt2
from .foreign_checkpoints import (
    TEXT,
    Malicious,
    agree,
    mlx_lm_logits,
    mlx_logits,
    nano,
    refusal,
)

TINY = tiny_gpt2()


def bin_folder(folder: Path, layout: str = "transformer.", **save: Any) -> Path:
    TINY.write(folder, layout)
    (folder / "model.safetensors").unlink()
    state = {name: torch.tensor(array) for name, array in published(TINY.weights, layout).items()}
    torch.save(state, folder / "pytorch_model.bin", **save)
    return folder


@pytest.mark.parametrize(
    ("layout", "save"),
    [("bare", {}), ("transformer.", {}), ("transformer.", {"_use_new_zipfile_serialization": False})],
)
def test_a_bin_file_converts_to_the_same_tokens(tmp_path: Path, layout: str, save: dict[str, Any]) -> None:
    source = bin_folder(tmp_path / "source", layout, **save)
    with pytest.raises(ModelError, match="mlxgen convert"):
        mlxgen.load(str(source))
    out = convert(source, tmp_path / "out").folder
    model = mlxgen.load(str(out))
    wanted = oracles.torch_greedy(TINY.torch(), model.tokenizer.encode("Once"), 16)
    assert mlxgen.generate(model, "Once", max_tokens=16, temperature=0, ignore_eos=True).tokens == wanted
    assert agree(mlx_lm_logits(out), mlx_logits(out))


def test_shards_of_bin_files(tmp_path: Path) -> None:
    source = bin_folder(tmp_path / "source")
    whole = convert(source, tmp_path / "whole").folder
    state = torch.load(source / "pytorch_model.bin", weights_only=True)
    (source / "pytorch_model.bin").unlink()
    weight_map = {}
    for number in (1, 2):
        file = f"pytorch_model-0000{number}-of-00002.bin"
        part = {name: tensor for i, (name, tensor) in enumerate(state.items()) if i % 2 == number - 1}
        torch.save(part, source / file)
        weight_map |= dict.fromkeys(part, file)
    index = source / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    out = convert(source, tmp_path / "out").folder
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    (source / "pytorch_model-00002-of-00002.bin").unlink()
    assert "which is missing" in refusal(source, tmp_path / "none")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_type_of_a_bin_file_is_kept(tmp_path: Path, dtype: torch.dtype) -> None:
    source = bin_folder(tmp_path / "source")
    state = torch.load(source / "pytorch_model.bin", weights_only=True)
    torch.save({name: tensor.to(dtype) for name, tensor in state.items()}, source / "pytorch_model.bin")
    done = convert(source, tmp_path / "out")
    assert done.dtype == {torch.float16: "float16", torch.bfloat16: "bfloat16"}.get(dtype, "float32")
    stored: Any = mx.load(str(done.folder / "model.safetensors"))
    expected = state["transformer.h.1.mlp.c_fc.weight"].T.to(dtype).float().numpy()
    assert np.array_equal(np.array(stored["model.h.1.mlp.c_fc.weight"].astype(mx.float32)), expected)


def test_dialogpts_first_name_for_the_head(tmp_path: Path) -> None:
    source = bin_folder(tmp_path / "source")
    state = torch.load(source / "pytorch_model.bin", weights_only=True)
    torch.save({**state, "lm_head.decoder.weight": state["transformer.wte.weight"]}, source / "pytorch_model.bin")
    done = convert(source, tmp_path / "out", verify=True)
    assert done.n_parameters == TINY.config.n_parameters


def test_a_bare_state_dict_with_a_config(tmp_path: Path) -> None:
    source = bin_folder(tmp_path / "source")
    (tmp_path / "loose").mkdir()
    file = (source / "pytorch_model.bin").rename(tmp_path / "loose" / "finetuned.pt")
    assert "--config" in refusal(file, tmp_path / "none", vocab=source)
    config = tmp_path / "heads.json"
    config.write_text('{"n_head": 4}')  # the rest is in the shapes
    done = convert(file, tmp_path / "out", config=config, vocab=source)
    config.write_text(json.dumps(TINY.entries))
    again = convert(file, tmp_path / "again", config=config, vocab=source / "tokenizer.json")
    ids = mlxgen.load(str(done.folder)).tokenizer.encode(TEXT)
    expected = oracles.torch_logits(TINY.torch(), ids)
    assert agree(mlx_logits(done.folder, ids), expected) and agree(mlx_logits(again.folder, ids), expected)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", ["ckpt.pt", "pytorch_model.bin"])
def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, zipped: bool, name: str) -> None:
    marker, folder = tmp_path / "executed", tmp_path / "source"
    folder.mkdir()
    if name == "pytorch_model.bin":
        (folder / "config.json").write_text(json.dumps(TINY.entries))
    bomb = {"model": {"x": torch.ones(2)}, "more": Malicious(marker)}
    torch.save(bomb, folder / name, _use_new_zipfile_serialization=zipped)
    message = refusal(folder, tmp_path / "none")
    assert "would run code" in message and "system" in message and str(folder / name) in message
    assert not marker.exists()
    torch.load(folder / name, weights_only=False)  # the file does what the test says it does
    assert marker.exists()


def test_a_plain_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    marker, file = tmp_path / "executed", tmp_path / "model.pt"
    file.write_bytes(pickle.dumps(Malicious(marker)))
    refusal(file, tmp_path / "none")
    assert not marker.exists()


def test_files_that_hold_no_weights(tmp_path: Path) -> None:
    def told(content: Any) -> str:
        file = tmp_path / "x.pt"
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            torch.save(content, file)
        return refusal(file, tmp_path / "none")

    assert "no state dict" in told({"epoch": 3})
    assert "no state dict" in told([torch.ones(2)])
    assert "not the weights of a GPT-2" in told({"fc.weight": torch.ones(2, 2)})
    assert "not a complete PyTorch file" in told(b"")
    assert "not a complete PyTorch file" in told(b"hello, this is no pickle")
    nano(tmp_path / "nano")
    whole = (tmp_path / "nano" / "ckpt.pt").read_bytes()
    assert "not a complete PyTorch file" in told(whole[: len(whole) // 2])


def test_without_torch_the_way_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nano(tmp_path / "nano")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert install_command("torch") in refusal(tmp_path / "nano", tmp_path / "none")


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("value", [np.float64(2.5), np.float32(2.5), np.int64(7), np.bool_(True)], ids=repr)
def test_a_numpy_number_beside_the_weights_is_plain_data(tmp_path: Path, value: Any, legacy: bool) -> None:
    torch.save(
        {"model": {"a": torch.ones(2)}, "best_val_loss": value},
        tmp_path / "x.pt",
        _use_new_zipfile_serialization=not legacy,
    )
    content = read_pickle(tmp_path / "x.pt")
    assert content["best_val_loss"] == value and type(content["best_val_loss"]) in (float, int, bool)


def test_other_things_of_numpys_are_still_refused(tmp_path: Path) -> None:
    for value in (np.ones(2), np.datetime64("2020-01-01"), np.str_("a"), np.complex64(1)):
        torch.save({"model": {"a": torch.ones(2)}, "x": value}, tmp_path / "x.pt")
        with pytest.raises(ModelError, match="would run code"):
            read_pickle(tmp_path / "x.pt")
