"""Checkpoints of Lightning, DeepSpeed and trl open as the models in them; those in parts are refused with a command."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from mlxgen.weights import convert

from ...cli.running import run
from ...support import oracles
from ...support.models import published, tiny_gpt2
from ..transformers_gpt2 import SIZES
from .foreign_checkpoints import IDS, agree, mlx_logits, refusal

TINY = tiny_gpt2(n_embd=16, n_layer=2, n_head=2)


def states(prefix: str = "") -> dict[str, Any]:
    """What DeepSpeed's save_checkpoint keeps in mp_rank_00_model_states.pt."""
    weights = {prefix + name: torch.tensor(array) for name, array in published(TINY.weights, "transformer.").items()}
    return {
        "module": weights,
        "buffer_names": [],
        "optimizer": None,
        "param_shapes": [{name: tensor.shape for name, tensor in weights.items()}],
        "frozen_param_shapes": None,
        "shared_params": {},
        "lr_scheduler": {"last_batch_iteration": 499},
        "sparse_tensor_module_names": {"transformer.wte"},
        "global_steps": 500,
        "ds_config": {"zero_optimization": {"stage": 2}, "bf16": {"enabled": False}},
        "ds_version": "0.17.0",
    }


def checkpoint(folder: Path, content: dict[str, Any], tag: str = "global_step500") -> Path:
    (folder / tag).mkdir(parents=True)
    torch.save(content, folder / tag / "mp_rank_00_model_states.pt")
    torch.save({"optimizer_state_dict": {}}, folder / tag / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    (folder / "latest").write_text(tag)
    (folder / "zero_to_fp32.py").write_text("")
    (folder / "config.json").write_text(json.dumps(TINY.entries))
    TINY.tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize(("prefix", "tag"), [("", "global_step500"), ("_forward_module.model.", "checkpoint")])
def test_deepspeeds_checkpoint_computes_what_transformers_computes(tmp_path: Path, prefix: str, tag: str) -> None:
    folder = checkpoint(tmp_path / "checkpoint-500", states(prefix), tag)
    expected = oracles.torch_logits(TINY.torch(), IDS)
    assert agree(mlx_logits(convert(folder, tmp_path / "out", verify=True).folder), expected)
    file = folder / tag / "mp_rank_00_model_states.pt"
    done = convert(file, tmp_path / "again", config=folder / "config.json", vocab=folder)
    assert agree(mlx_logits(done.folder), expected)


def test_generate_sends_a_checkpoint_of_deepspeeds_to_convert(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoint-500", states())
    said = run("generate", "-m", str(folder), "Once")
    assert said.exit_code == 1
    assert f"it is a checkpoint of DeepSpeed: convert it with `mlxgen convert {folder}`" in said.stderr


def test_zero_3_is_refused_with_the_command_that_joins_it(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoint-500", states())
    inner = folder / "global_step500"
    part = (inner / "mp_rank_00_model_states.pt").rename(inner / "zero_pp_rank_0_mp_rank_00_model_states.pt")
    join = f"`python {folder}/zero_to_fp32.py {folder} {folder}/whole`"
    convert_it = f"`mlxgen convert {folder}/whole --config {folder}/config.json --vocab {folder}`"
    for source in (folder, part):
        message = refusal(source, tmp_path / "none")
        assert "ZeRO-3" in message and join in message and convert_it in message
    (folder / "whole").mkdir()  # what the command writes
    torch.save(states()["module"], folder / "whole" / "pytorch_model.bin")
    done = convert(folder / "whole", tmp_path / "out", config=folder / "config.json", vocab=folder)
    assert agree(mlx_logits(done.folder), oracles.torch_logits(TINY.torch(), IDS))


def test_other_parts_of_deepspeeds_checkpoints(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "run", states())
    inner = folder / "global_step500"
    message = refusal(inner / "zero_pp_rank_0_mp_rank_00_optim_states.pt", tmp_path / "none")
    assert "optimizer" in message and "mp_rank_00_model_states.pt" in message
    torch.save(states(), inner / "mp_rank_01_model_states.pt")
    assert "split between processes" in refusal(folder, tmp_path / "none")


@pytest.mark.parametrize("prefix", ["model.", "module.", "model.module.", "_forward_module.", "_orig_mod.model."])
def test_a_checkpoint_of_lightnings(tmp_path: Path, prefix: str) -> None:
    weights = published(TINY.weights, "transformer.")
    content = {
        "epoch": 3,
        "global_step": 1000,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": {prefix + name: torch.tensor(array) for name, array in weights.items()},
        "loops": {"fit_loop": {"state_dict": {}}},
        "callbacks": {"ModelCheckpoint{'monitor': 'val_loss'}": {"best_model_score": torch.tensor(3.1)}},
        "optimizer_states": [{"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 1e-4}]}],
        "lr_schedulers": [],
        "hparams_name": "kwargs",
        "hyper_parameters": argparse.Namespace(lr=1e-4),
    }
    torch.save(content, tmp_path / "epoch=3-step=1000.ckpt")
    (tmp_path / "config.json").write_text(json.dumps(TINY.entries))
    TINY.tokenizer.save(str(tmp_path / "tokenizer.json"))
    done = convert(tmp_path / "epoch=3-step=1000.ckpt", tmp_path / "out")
    assert agree(mlx_logits(done.folder), oracles.torch_logits(TINY.torch(), IDS))


HEADS = {"v_head.summary.weight": (1, 16), "v_head.summary.bias": (1,)}
ILQL = {"ilql_heads.q_heads.0.0.weight": (32, 16), "ilql_heads.v_head.0.bias": (32,)}


@pytest.mark.parametrize("heads", [HEADS, ILQL], ids=["trl", "trlx"])
def test_a_value_head_in_a_pytorch_file_is_left_out_and_named(tmp_path: Path, heads: dict[str, Any]) -> None:
    weights = {name: torch.tensor(array) for name, array in published(TINY.weights, "transformer.").items()}
    TINY.write(tmp_path / "trl")
    (tmp_path / "trl" / "model.safetensors").unlink()
    torch.save(
        weights | {name: torch.ones(shape) for name, shape in heads.items()}, tmp_path / "trl" / "pytorch_model.bin"
    )
    done = convert(tmp_path / "trl", tmp_path / "out")
    assert agree(mlx_logits(done.folder), oracles.torch_logits(TINY.torch(), IDS))
    assert all(name in done.warnings[0] for name in heads) and "left out" in done.warnings[0]


def test_a_double_heads_model_in_a_pytorch_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.GPT2DoubleHeadsModel(
        transformers.GPT2Config(**SIZES | {"vocab_size": 300}, num_labels=1)
    ).eval()
    (tmp_path / "double").mkdir()
    model.config.save_pretrained(tmp_path / "double")
    torch.save(model.state_dict(), tmp_path / "double" / "pytorch_model.bin")
    TINY.tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = [1, 2, 3, 5, 8]
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits[0].numpy()
    done = convert(tmp_path / "double", tmp_path / "out", vocab=tmp_path / "tokenizer.json")
    assert agree(mlx_logits(done.folder, ids), theirs)
    assert "multiple_choice_head.summary.weight" in done.warnings[0]
