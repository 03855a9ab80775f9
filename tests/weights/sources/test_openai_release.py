"""OpenAI's TensorFlow checkpoints are refused with the same model on the hub, and files that look like them are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mlxgen.weights import convert

from ...support import torch_gpts
from .foreign_checkpoints import (
    IDS,
    agree,
    characters,
    mlx_logits,
    nano,
    refusal,
)


def test_openais_tensorflow_checkpoint_names_the_hubs(tmp_path: Path) -> None:
    folder = tmp_path / "345M"
    folder.mkdir()
    (folder / "hparams.json").write_text('{"n_vocab": 50257, "n_ctx": 1024, "n_embd": 1024, "n_layer": 24}')
    for name in ("encoder.json", "vocab.bpe", "model.ckpt.index", "model.ckpt.data-00000-of-00001", "checkpoint"):
        (folder / name).write_text("")
    assert "openai-community/gpt2-medium" in refusal(folder, tmp_path / "none")
    (folder / "model.ckpt.index").unlink()  # not all of it was downloaded
    assert "openai-community/gpt2-medium" in refusal(folder, tmp_path / "none")


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
