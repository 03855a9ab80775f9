"""Checkpoints of other programs for these tests, and comparisons of their logits with the converted model's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch

from mlxgen.errors import ModelError
from mlxgen.weights import convert
from mlxgen.weights.load import open_decoder

from ...support import torch_gpts

IDS = [5, 1, 7, 3, 3, 11, 2, 0, 9, 4]


TEXT = "Far far away, behind the word mountains."


CHARACTERS = {character: number for number, character in enumerate(sorted({*TEXT, "\n"}))}


SHAPE = {"n_positions": 16, "n_layer": 2, "n_head": 4, "width": 32}


def mlx_logits(folder: Path, ids: list[int] = IDS) -> Any:
    return np.array(open_decoder(folder)(mx.array([ids]))[0])


def mlx_lm_logits(folder: Path, ids: list[int] = IDS) -> Any:
    import mlx_lm

    model, _ = mlx_lm.load(str(folder))
    return np.array(model(mx.array([ids]))[0].astype(mx.float32))


def agree(a: Any, b: Any) -> bool:
    return bool(np.abs(a - b).max() < 1e-4) and bool((a.argmax(-1) == b.argmax(-1)).all())


def refusal(source: Path, out: Path, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        convert(source, out, **options)
    assert "\n" not in str(caught.value) and not out.exists()
    assert not [path for path in out.parent.iterdir() if path.name.startswith(".")]
    return str(caught.value)


def nano(folder: Path, *, vocab: int = len(CHARACTERS), bias: bool = True, prefix: str = "", **more: Any) -> Any:
    """A nanoGPT model, and the ckpt.pt that its train.py would have written."""
    model = torch_gpts.GPT(vocab, bias=bias, **SHAPE)
    arguments = {
        "n_layer": 2,
        "n_head": 4,
        "n_embd": 32,
        "block_size": 16,
        "bias": bias,
        "vocab_size": vocab,
        "dropout": 0.0,
    }
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = {
        "model": {prefix + name: tensor for name, tensor in model.state_dict().items()},
        "optimizer": torch.optim.AdamW(model.parameters()).state_dict(),
        "model_args": arguments,
        "iter_num": 2000,
        "best_val_loss": torch.tensor(1.5),
        "config": {"dataset": "tales", "batch_size": 12, "compile": True},
        **more,
    }
    torch.save(checkpoint, folder / "ckpt.pt")
    return model


def characters(folder: Path) -> Path:
    file = folder / "characters.json"
    file.write_text(json.dumps(CHARACTERS))
    return file


class Malicious:
    """Unpickling it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)
