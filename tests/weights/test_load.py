"""Checkpoints that transformers wrote come out of our decoder with the logits they had there."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
import transformers
from mlx.utils import tree_flatten
from safetensors.torch import load_file, save_file

import mlxgen
from mlxgen.dtypes import name_of
from mlxgen.errors import ModelError, OptionError
from mlxgen.network.cache import make_cache
from mlxgen.network.decoder import GPT2
from mlxgen.weights.load import open_decoder

from .transformers_gpt2 import IDS, SIZES, edit_config, their_logits, theirs


def assert_same_logits(folder: Path, wanted: np.ndarray, tolerance: float = 1e-4) -> None:
    decoder = open_decoder(folder)
    np.testing.assert_allclose(np.array(decoder(mx.array(IDS))), wanted, atol=tolerance, rtol=1e-5)


def rename(folder: Path, change: Any) -> None:
    """Rewrite the tensors of a saved checkpoint in another layout."""
    file = folder / "model.safetensors"
    save_file(dict(change(name, weight) for name, weight in load_file(file).items()), file)


def to_bare(name: str, weight: torch.Tensor) -> tuple[str, torch.Tensor]:
    return name.removeprefix("transformer."), weight


def to_mlx(name: str, weight: torch.Tensor) -> tuple[str, torch.Tensor]:
    turned = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
    name = f"model.{name.removeprefix('transformer.')}" if name != "lm_head.weight" else name
    return name, weight.T.contiguous() if turned else weight


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("layout", ["transformer", "bare", "mlx"])
def test_each_layout_gives_the_logits_of_transformers(tmp_path: Path, layout: str, tied: bool) -> None:
    model = theirs(tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    if layout != "transformer":
        rename(tmp_path, to_bare if layout == "bare" else to_mlx)
    assert_same_logits(tmp_path, their_logits(model))


def test_the_bare_model_that_transformers_saves(tmp_path: Path) -> None:
    model = theirs()
    model.transformer.save_pretrained(tmp_path)
    assert_same_logits(tmp_path, their_logits(model))


def test_shards(tmp_path: Path) -> None:
    model = theirs()
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_same_logits(tmp_path, their_logits(model))
    next(tmp_path.glob("model-00002-*")).unlink()
    with pytest.raises(ModelError, match="which is missing"):
        open_decoder(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr("mlxgen.device.on_cpu", lambda: True)
    model = theirs().to(dtype)
    model.save_pretrained(tmp_path)
    decoder = open_decoder(tmp_path)
    assert {array.dtype for _, array in tree_flatten(decoder.parameters())} == {mx.float32}
    assert_same_logits(tmp_path, their_logits(model))


def test_elsewhere_weights_keep_the_type_they_are_stored_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs().to(torch.bfloat16).save_pretrained(tmp_path)
    monkeypatch.setattr("mlxgen.device.on_cpu", lambda: False)
    assert_types(open_decoder(tmp_path), mx.bfloat16, head="model.wte.weight")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_weights_have_the_type_that_is_asked_for_and_the_head_float32(
    tmp_path: Path, dtype: mx.Dtype, tied: bool
) -> None:
    theirs(tie_word_embeddings=tied).save_pretrained(tmp_path)
    decoder = open_decoder(tmp_path, dtype=name_of(dtype))
    assert_types(decoder, dtype, head="model.wte.weight" if tied else "lm_head.weight")
    assert decoder(mx.array(IDS)).dtype == mx.float32
    cache = make_cache(decoder.config.n_layer)
    decoder(mx.array(IDS), cache)
    assert cache[0].state[0].dtype == dtype  # the blocks compute in it


def test_an_unknown_type_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(OptionError, match="dtype must be one of float32, float16, bfloat16, not 'int8'"):
        mlxgen.load("owner/not-there", dtype="int8")


def assert_types(decoder: GPT2, dtype: mx.Dtype, *, head: str) -> None:
    types = {name: array.dtype for name, array in tree_flatten(decoder.parameters())}
    assert types.pop(head) == mx.float32
    assert set(types.values()) == {dtype}


def test_mask_buffers_and_a_repeated_head_change_nothing(tmp_path: Path) -> None:
    model = theirs()
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["lm_head.weight"] = weights["transformer.wte.weight"].clone()
    weights["transformer.h.0.attn.bias"] = torch.ones(1, 1, 24, 24, dtype=torch.bool)
    weights["transformer.h.1.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(weights, tmp_path / "model.safetensors")
    assert_same_logits(tmp_path, their_logits(model))
    assert open_decoder(tmp_path).config.tie_word_embeddings


def test_a_head_that_differs_is_not_tied_as_in_transformers(tmp_path: Path) -> None:
    theirs(tie_word_embeddings=False).save_pretrained(tmp_path)
    edit_config(tmp_path, tie_word_embeddings=True)
    reopened = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert_same_logits(tmp_path, their_logits(reopened))
    assert not open_decoder(tmp_path).config.tie_word_embeddings


def test_a_config_of_2019(tmp_path: Path) -> None:
    model = theirs()
    model.save_pretrained(tmp_path)
    entries = {"n_ctx": 24, "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 97}
    (tmp_path / "config.json").write_text(json.dumps(entries))
    assert_same_logits(tmp_path, their_logits(model))


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ({"n_layer": 3}, r"missing transformer\.h\.2\.ln_1\.weight, .*transformer\.h\.2\.ln_2\.bias and 4 more"),
        ({"n_layer": 1}, r"unexpected transformer\.h\.1\."),
        ({"vocab_size": 2_000_000}, r"wte\.weight has shape \[97, 64\], not \[2000000, 64\]"),
        ({"n_inner": 100}, r"c_fc\.weight has shape \[64, 256\], not \[64, 100\]"),
        ({"tie_word_embeddings": False}, r"missing lm_head\.weight"),
        ({"model_type": "bert"}, "bert"),
        ({"add_cross_attention": True}, "cross-attention"),
    ],
)
def test_a_config_of_another_model_is_refused_before_anything_is_allocated(
    tmp_path: Path, entries: dict[str, Any], told: str
) -> None:
    theirs().save_pretrained(tmp_path)
    edit_config(tmp_path, **entries)
    mx.reset_peak_memory()
    with pytest.raises(ModelError, match=told) as caught:
        open_decoder(tmp_path)
    message = str(caught.value)
    assert message.startswith(str(tmp_path)) and "\n" not in message and len(message) < 600
    assert mx.get_peak_memory() - mx.get_active_memory() < 1 << 16


@pytest.mark.parametrize("keep", [0, 7, 8, 100, 5_000, -1])
def test_a_truncated_file(tmp_path: Path, keep: int) -> None:
    theirs().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"model\.safetensors") as caught:
        open_decoder(tmp_path)
    assert "\n" not in str(caught.value)


def test_cross_attention_weights_are_refused(tmp_path: Path) -> None:
    theirs(add_cross_attention=True).save_pretrained(tmp_path)
    edit_config(tmp_path, add_cross_attention=False)
    with pytest.raises(ModelError, match=r"unexpected transformer\.h\.0\.crossattention"):
        open_decoder(tmp_path)


def test_a_classifier_is_refused_by_its_head(tmp_path: Path) -> None:
    config = transformers.GPT2Config(**SIZES, eos_token_id=96, bos_token_id=96)
    transformers.GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"those of a classifier.*score\.weight"):
        open_decoder(tmp_path)


def test_elsewhere_a_few_weights_of_another_type_take_that_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxgen.device.on_cpu", lambda: False)
    model = theirs().half()
    for name, module in model.named_modules():
        if "ln_" in name:
            module.float()
    model.save_pretrained(tmp_path)
    assert_types(open_decoder(tmp_path), mx.float16, head="model.wte.weight")
