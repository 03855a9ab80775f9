"""minGPT's two versions compute what their own forward passes compute, and are told from nanoGPT."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from mlxgen.cli.main import main
from mlxgen.weights import convert

from ...support import torch_gpts
from .foreign_checkpoints import (
    CHARACTERS,
    IDS,
    SHAPE,
    agree,
    characters,
    mlx_logits,
    refusal,
)


def test_mingpt_with_its_own_config(tmp_path: Path) -> None:
    model = torch_gpts.GPT(len(CHARACTERS), nano=False, **SHAPE)
    folder, vocab = tmp_path / "chargpt", characters(tmp_path)
    folder.mkdir()
    torch.save(model.state_dict(), folder / "model.pt")
    assert "n_head" in refusal(folder / "model.pt", tmp_path / "none", vocab=vocab)
    settings = {"model_type": None, "n_layer": 2, "n_head": 4, "n_embd": 32, "vocab_size": len(CHARACTERS)}
    config = {"system": {"seed": 3}, "model": {**settings, "block_size": 16, "resid_pdrop": 0.1}}
    (folder / "config.json").write_text(json.dumps(config))
    for source, out in ((folder / "model.pt", "a"), (folder, "b")):
        done = convert(source, tmp_path / out, vocab=vocab, verify=True)
        assert done.kind == "minGPT state dict"
        assert agree(mlx_logits(done.folder), torch_gpts.logits(model, IDS))
    assert "mlx-lm cannot open" in done.warnings[0]  # its head is its own


@pytest.mark.parametrize("head", [True, False])
def test_a_bare_nanogpt_with_masks_is_told_from_mingpt_by_its_head(tmp_path: Path, head: bool) -> None:
    model = torch_gpts.GPT(len(CHARACTERS), **SHAPE)
    masks = {f"transformer.h.{layer}.attn.bias": torch.ones(16, 16).tril()[None, None] for layer in range(2)}
    state = {**model.state_dict(), **masks}  # as nanoGPT has them where there is no flash attention
    if not head:
        del state["lm_head.weight"]
    torch.save(state, tmp_path / "nano.pt")
    config, vocab = tmp_path / "heads.json", characters(tmp_path)
    config.write_text('{"n_head": 4}')
    done = convert(tmp_path / "nano.pt", tmp_path / "out", config=config, vocab=vocab)
    assert done.kind == "nanoGPT state dict" and done.assumed_activation == "gelu"
    assert agree(mlx_logits(done.folder), torch_gpts.logits(model, IDS))
    command = ["convert", str(tmp_path / "nano.pt"), "--config", str(config), "--vocab", str(vocab), "--force"]
    result = CliRunner().invoke(main, [*command, "-o", str(tmp_path / "out")])
    assert "activation  gelu is assumed; set another with --config FILE\n" in result.stdout
    config.write_text('{"n_head": 4, "activation_function": "gelu_new"}')
    result = CliRunner().invoke(main, [*command, "-o", str(tmp_path / "out")])
    assert result.exit_code == 0 and "assumed" not in result.stdout


def test_mingpts_first_version(tmp_path: Path) -> None:
    model = torch_gpts.FirstGPT(len(CHARACTERS), **SHAPE)
    torch.save(model.state_dict(), tmp_path / "first.pt")
    config = tmp_path / "heads.json"
    config.write_text('{"n_head": 4}')
    done = convert(tmp_path / "first.pt", tmp_path / "out", config=config, vocab=characters(tmp_path))
    assert done.kind == "minGPT state dict"
    assert agree(mlx_logits(done.folder), torch_gpts.logits(model, IDS))
