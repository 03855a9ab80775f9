"""nanoGPT's checkpoints compute what nanoGPT's own forward pass computes, and get its vocabulary."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import mlxgen
from mlxgen.weights import convert

from ...support import torch_gpts
from ...support.models import END, byte_tokenizer
from .foreign_checkpoints import (
    CHARACTERS,
    IDS,
    TEXT,
    Malicious,
    agree,
    characters,
    mlx_lm_logits,
    mlx_logits,
    nano,
    refusal,
)


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


def test_transformers_opens_what_nanogpt_saved(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = nano(tmp_path / "out-tales", bias=False)
    (tmp_path / "out-tales" / "meta.json").write_text(json.dumps({"stoi": CHARACTERS}))
    folder = convert(tmp_path / "out-tales" / "ckpt.pt", tmp_path / "hf", to="hf", verify=True).folder
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(folder).eval()(torch.tensor([IDS])).logits[0].numpy()
    assert agree(theirs, torch_gpts.logits(model, IDS))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer(TEXT).input_ids == [CHARACTERS[character] for character in TEXT]
    assert tokenizer.decode(tokenizer(TEXT).input_ids) == TEXT


def test_mlx_lm_opens_a_converted_nanogpt_and_its_other_gelu_is_told(tmp_path: Path) -> None:
    import mlx_lm

    nano(tmp_path / "nano")
    done = convert(tmp_path / "nano", tmp_path / "mlx", vocab=characters(tmp_path))
    (warning,) = done.warnings
    assert "mlx-lm computes this model differently" in warning and "gelu" in warning
    assert np.abs(mlx_lm_logits(done.folder) - mlx_logits(done.folder)).max() < 0.1
    model, tokenizer = mlx_lm.load(str(done.folder))
    assert len(tokenizer.encode(mlx_lm.generate(model, tokenizer, "Far", max_tokens=4))) == 4


def test_a_vocabulary_padded_to_50304_keeps_its_rows_and_gpt2s_tokenizer(tmp_path: Path) -> None:
    model = nano(tmp_path / "nano", vocab=50304)
    byte_tokenizer().save(str(tmp_path / "nano" / "tokenizer.json"))  # stands for GPT-2's
    done = convert(tmp_path / "nano", tmp_path / "mlx")
    assert agree(mlx_logits(done.folder), torch_gpts.logits(model, IDS))
    assert json.loads((done.folder / "config.json").read_text())["vocab_size"] == 50304


def test_a_vocabulary_larger_than_gpt2s_has_no_end_token_unless_its_tokenizer_names_one(tmp_path: Path) -> None:
    """52,000 characters, of which 50,256 is an ordinary one."""
    nano(tmp_path / "nano", vocab=52_000)
    letters = [chr(at) for at in range(0x20000, 0x20000 + 52_000)]
    (tmp_path / "nano" / "meta.json").write_text(json.dumps({"itos": dict(enumerate(letters))}))
    done = convert(tmp_path / "nano", tmp_path / "mlx")
    config = json.loads((done.folder / "config.json").read_text())
    assert config["eos_token_id"] is None and config["bos_token_id"] is None  # null: a missing entry would mean 50256
    model = mlxgen.load(str(done.folder))
    assert not model.end_tokens and model.config.bos_token_id is None
    assert model.tokenizer.decode([50256]) == letters[50256]
    library = byte_tokenizer()  # names an end token of its own
    library.save(str(tmp_path / "nano" / "tokenizer.json"))
    (tmp_path / "nano" / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    done = convert(tmp_path / "nano", tmp_path / "named")
    assert json.loads((done.folder / "config.json").read_text())["eos_token_id"] == library.token_to_id(END)
    assert mlxgen.load(str(done.folder)).end_tokens == {library.token_to_id(END)}


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


def test_shapes_that_disagree_are_told(tmp_path: Path) -> None:
    nano(tmp_path / "nano", model_args={"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": 99, "vocab_size": 20})
    message = refusal(tmp_path / "nano", tmp_path / "none", vocab=characters(tmp_path))
    assert "wte" in message and "wpe" in message and "[99, 32]" in message
