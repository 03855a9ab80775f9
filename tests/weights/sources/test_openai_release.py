"""OpenAI's TensorFlow checkpoints, as TensorFlow wrote them, compute what transformers computes with their weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch

import mlxgen
from mlxgen.weights import convert

from ...cli.running import run
from ...support import oracles, tensorflow_checkpoints, torch_gpts
from ...support.models import END, TinyGPT2
from .foreign_checkpoints import IDS, agree, characters, mlx_logits, nano, refusal

SMALL, LARGE, OTHER = tensorflow_checkpoints.small(), tensorflow_checkpoints.large(), tensorflow_checkpoints.other()


def copied(name: str, folder: Path, model: TinyGPT2) -> Path:
    """A checkpoint of TensorFlow's with OpenAI's small files."""
    shutil.copytree(tensorflow_checkpoints.FOLDER / name, folder)
    return tensorflow_checkpoints.add_small_files(folder, model)


def expected(model: TinyGPT2, ids: list[int] = IDS) -> Any:
    return oracles.torch_logits(model.torch(), ids)


def test_the_release_computes_what_transformers_computes(tmp_path: Path) -> None:
    folder = copied("release", tmp_path / "124M", LARGE)
    done = convert(folder, tmp_path / "out", verify=True)
    assert done.kind == "TensorFlow checkpoint" and done.tokenizer == "the source's" and not done.warnings
    assert done.assumed_activation is None and done.n_parameters == LARGE.config.n_parameters
    assert done.verification is not None and done.verification.largest_difference == 0
    assert agree(mlx_logits(done.folder), expected(LARGE))
    model = mlxgen.load(str(done.folder))
    assert model.tokenizer.encode("Once upon") == LARGE.tokenizer.encode("Once upon").ids
    assert model.end_tokens == {LARGE.tokenizer.token_to_id(END)}


@pytest.mark.parametrize(
    "given", ["", "model-10.index", "model-10", "model-10.data-00000-of-00001", "checkpoint", "model-5"]
)
def test_a_run_of_gpt_2_simple_in_every_way_to_name_it(tmp_path: Path, given: str) -> None:
    folder = copied("run1", tmp_path / "checkpoint" / "run1", SMALL)
    done = convert(folder / given, tmp_path / "out")
    assert agree(mlx_logits(done.folder), expected(OTHER if given == "model-5" else SMALL))


def test_several_checkpoints_of_which_none_is_the_newest(tmp_path: Path) -> None:
    folder = copied("run1", tmp_path / "run1", SMALL)
    (folder / "checkpoint").unlink()
    message = refusal(folder, tmp_path / "none")
    assert "model-10.index, model-5.index" in message and "give the path of one" in message


@pytest.mark.parametrize("name", ["optimizer", "sharded", "halves"])
def test_optimizer_slots_several_files_and_types_of_16_bits(tmp_path: Path, name: str) -> None:
    done = convert(copied(name, tmp_path / name, SMALL), tmp_path / "out")
    if name != "halves":
        assert agree(mlx_logits(done.folder), expected(SMALL)) and done.dtype == "float32"
        return
    stored: Any = mx.load(str(done.folder / "model.safetensors"))
    names = dict(zip(tensorflow_checkpoints.variables(SMALL.weights), SMALL.weights, strict=True))
    for at, variable in enumerate(sorted(names)):
        dtype = (torch.float16, torch.bfloat16)[at % 2]
        theirs = torch.tensor(SMALL.weights[names[variable]]).to(dtype).float().numpy()
        assert np.array_equal(np.array(stored[names[variable]].astype(mx.float32)), theirs), variable


def test_hparams_elsewhere_are_given_with_config(tmp_path: Path) -> None:
    folder = copied("release", tmp_path / "124M", LARGE)
    elsewhere = (folder / "hparams.json").rename(tmp_path / "hparams.json")
    assert "has no hparams.json; give it with --config" in refusal(folder, tmp_path / "none")
    done = convert(folder, tmp_path / "out", config=elsewhere)
    assert agree(mlx_logits(done.folder), expected(LARGE))
    elsewhere.write_text(json.dumps(LARGE.entries))  # a config.json
    assert agree(mlx_logits(convert(folder, tmp_path / "again", config=elsewhere).folder), expected(LARGE))
    elsewhere.write_text("{}")
    assert "n_head" in refusal(folder, tmp_path / "none", config=elsewhere)


def test_a_release_that_is_not_complete(tmp_path: Path) -> None:
    folder = copied("release", tmp_path / "124M", LARGE)
    data, index = folder / "model.ckpt.data-00000-of-00001", folder / "model.ckpt.index"
    whole = data.read_bytes()
    data.write_bytes(whole[:-1])
    assert f"{data}: cut off" in refusal(folder, tmp_path / "none")
    data.unlink()
    assert f"{data}: is missing" in refusal(folder, tmp_path / "none")
    data.write_bytes(whole[:5000] + b"\0" + whole[5001:])
    assert "is damaged (its checksum is wrong)" in refusal(folder, tmp_path / "none")
    data.write_bytes(whole)
    table = index.read_bytes()
    index.write_bytes(table[:-9])
    assert f"{index}: not a complete TensorFlow index" in refusal(folder, tmp_path / "none")
    index.unlink()
    assert f"{index}: is missing" in refusal(folder, tmp_path / "none")
    data.unlink()  # only the file "checkpoint" names it
    assert f"{index}: is missing" in refusal(folder, tmp_path / "none")


def test_hparams_of_another_size(tmp_path: Path) -> None:
    folder = copied("release", tmp_path / "124M", LARGE)
    sizes = json.loads((folder / "hparams.json").read_text()) | {"n_ctx": 99}
    (folder / "hparams.json").write_text(json.dumps(sizes))
    message = refusal(folder, tmp_path / "none")
    assert "hparams.json" in message and "wpe.weight has shape [64, 8], not [99, 8]" in message


def test_version_1_is_named(tmp_path: Path) -> None:
    folder = copied("first", tmp_path / "first", SMALL)
    for source in (folder / "model.ckpt", folder):
        message = refusal(source, tmp_path / "none")
        assert str(folder / "model.ckpt") in message
        assert "TensorFlow checkpoint of version 1" in message and "tf.compat.v1.train.Saver" in message


def test_generate_says_the_command_that_converts_it(tmp_path: Path) -> None:
    folder = copied("run1", tmp_path / "run1", SMALL)
    for name in ("", "model-10", "model-10.index"):
        said = run("generate", "-m", str(folder / name), "Once")
        assert said.exit_code == 1 and "is a TensorFlow checkpoint" in said.stderr.replace("contains", "is")
        assert f"`mlxgen convert {folder}/{'model-10.index' if name else 'checkpoint'}`" in said.stderr  # the newest
    outer = run("generate", "-m", str(tmp_path), "Once")
    assert f"such as {folder}" in outer.stderr


@pytest.mark.parametrize("lightning", [False, True])
def test_a_pytorch_file_called_model_ckpt_is_not_tensorflows(tmp_path: Path, lightning: bool) -> None:
    model = nano(tmp_path / "nano")
    content: Any = torch.load(tmp_path / "nano" / "ckpt.pt", weights_only=True)
    if lightning:
        content = {"state_dict": {"model." + name: tensor for name, tensor in content["model"].items()}, "epoch": 3}
        (tmp_path / "heads.json").write_text('{"n_head": 4}')
    (tmp_path / "nano" / "ckpt.pt").unlink()
    torch.save(content, tmp_path / "nano" / "model.ckpt")
    config = tmp_path / "heads.json" if lightning else None
    done = convert(tmp_path / "nano", tmp_path / "out", config=config, vocab=characters(tmp_path))
    assert agree(mlx_logits(done.folder), torch_gpts.logits(model, IDS))
