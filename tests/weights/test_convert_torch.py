"""PyTorch files: transformers' .bin, nanoGPT's and minGPT's checkpoints, and pickles that would run code."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from click.testing import CliRunner

import mlxgen
from mlxgen.cli.main import main
from mlxgen.errors import ModelError
from mlxgen.weights import convert
from mlxgen.weights.load import open_decoder

from ..support import oracles, torch_gpts
from ..support.models import published, tiny_gpt2

IDS = [5, 1, 7, 3, 3, 11, 2, 0, 9, 4]
TEXT = "Far far away, behind the word mountains."
CHARACTERS = {character: number for number, character in enumerate(sorted({*TEXT, "\n"}))}
TINY = tiny_gpt2()
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


# --- what transformers saved before safetensors


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


# --- nanoGPT


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


@pytest.mark.parametrize(("bias", "prefix"), [(True, ""), (False, "_orig_mod.")])
def test_nanogpts_checkpoint_computes_what_its_own_forward_pass_computes(
    tmp_path: Path, bias: bool, prefix: str
) -> None:
    model = nano(tmp_path / "out-tales", bias=bias, prefix=prefix)
    (tmp_path / "out-tales" / "meta.json").write_text(json.dumps({"stoi": CHARACTERS}))
    done = convert(tmp_path / "out-tales" / "ckpt.pt", tmp_path / "mlx", verify=True)
    assert done.kind == "nanoGPT checkpoint"
    assert agree(mlx_logits(done.folder), torch_gpts.logits(model, IDS))
    opened = mlxgen.load(str(done.folder))
    assert opened.tokenizer.encode(TEXT) == [CHARACTERS[character] for character in TEXT]
    assert opened.tokenizer.decode(opened.tokenizer.encode(TEXT)) == TEXT
    assert not opened.end_tokens
    chosen = mlxgen.generate(opened, "Far", max_tokens=8, temperature=0).tokens
    ids = [CHARACTERS[character] for character in "Far"]
    for token in chosen:
        assert token == torch_gpts.logits(model, ids)[-1].argmax()
        ids.append(token)


def test_mlx_lm_opens_a_converted_nanogpt_and_its_other_gelu_is_told(tmp_path: Path) -> None:
    import mlx_lm

    nano(tmp_path / "nano")
    done = convert(tmp_path / "nano", tmp_path / "mlx", vocab=characters(tmp_path))
    (warning,) = done.warnings
    assert "mlx-lm computes this model differently" in warning and "gelu" in warning
    assert np.abs(mlx_lm_logits(done.folder) - mlx_logits(done.folder)).max() < 0.1
    model, tokenizer = mlx_lm.load(str(done.folder))
    assert len(tokenizer.encode(mlx_lm.generate(model, tokenizer, "Far", max_tokens=4))) == 4


def characters(folder: Path) -> Path:
    file = folder / "characters.json"
    file.write_text(json.dumps(CHARACTERS))
    return file


def test_a_vocabulary_padded_to_50304_keeps_its_rows_and_gpt2s_tokenizer(tmp_path: Path) -> None:
    model = nano(tmp_path / "nano", vocab=50304)
    TINY.tokenizer.save(str(tmp_path / "nano" / "tokenizer.json"))  # stands for GPT-2's
    done = convert(tmp_path / "nano", tmp_path / "mlx")
    assert agree(mlx_logits(done.folder), torch_gpts.logits(model, IDS))
    assert json.loads((done.folder / "config.json").read_text())["vocab_size"] == 50304


def test_nanogpts_vocabulary_is_read_as_data_or_not_at_all(tmp_path: Path) -> None:
    nano(tmp_path / "out-tales")
    folder = tmp_path / "out-tales"
    assert "--vocab" in refusal(folder, tmp_path / "none")
    (tmp_path / "data" / "tales").mkdir(parents=True)
    meta = tmp_path / "data" / "tales" / "meta.pkl"  # where nanoGPT's prepare.py puts it
    itos = {number: character for character, number in CHARACTERS.items()}
    meta.write_bytes(pickle.dumps({"vocab_size": len(CHARACTERS), "itos": itos, "stoi": CHARACTERS}))
    done = convert(folder, tmp_path / "mlx")
    assert mlxgen.load(str(done.folder)).tokenizer.encode("Far") == [CHARACTERS[c] for c in "Far"]
    marker = tmp_path / "executed"
    meta.write_bytes(pickle.dumps({"stoi": Malicious(marker)}))
    assert "could run code" in refusal(folder, tmp_path / "none")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"ab": 1}', "single characters"),
        ('{"a": 1, "b": 1}', "same id"),
        ('{"a": 99}', "not the model's vocabulary"),
        ("{}", "no vocabulary"),
        ("[1", "not valid JSON"),
        ('{"a": "x"}', "single characters"),
    ],
)
def test_a_wrong_vocabulary(tmp_path: Path, content: str, told: str) -> None:
    nano(tmp_path / "nano")
    file = tmp_path / "vocab.json"
    file.write_text(content)
    assert told in refusal(tmp_path / "nano", tmp_path / "none", vocab=file)


# --- minGPT


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
    assert "activation  gelu is assumed (--config FILE can name another)\n" in result.stdout
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


# --- files that are not what they say


class Malicious:
    """Unpickling it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


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
    assert 'pip install "mlxgen[torch]"' in refusal(tmp_path / "nano", tmp_path / "none")


def test_shapes_that_disagree_are_told(tmp_path: Path) -> None:
    nano(tmp_path / "nano", model_args={"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": 99, "vocab_size": 20})
    message = refusal(tmp_path / "nano", tmp_path / "none", vocab=characters(tmp_path))
    assert "wte" in message and "wpe" in message and "[99, 32]" in message


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
