"""Checkpoints that transformers and mlx-lm wrote come out of our decoder with the logits they had there."""

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import tokenizers
import torch
import transformers
from mlx.utils import tree_flatten
from safetensors.torch import load_file, save_file

import mlxgen
from mlxgen.errors import MlxgenError, ModelError, OptionError
from mlxgen.weights.load import end_tokens, open_decoder

SIZES: dict[str, Any] = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 24, "vocab_size": 97}
IDS = np.random.default_rng(1).integers(0, 97, (2, 20))


def theirs(**options: Any) -> transformers.GPT2LMHeadModel:
    """A GPT-2 with random weights, large enough that a wrong orientation or a lost bias shows."""
    torch.manual_seed(0)
    ends = {"eos_token_id": 96, "bos_token_id": 96}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES | ends | options)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.2)
    return model


def their_logits(model: transformers.GPT2LMHeadModel) -> np.ndarray:
    with torch.no_grad():
        logits: np.ndarray = model.float()(torch.tensor(IDS)).logits.numpy()
    return logits


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


def edit_config(folder: Path, **entries: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


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
def test_half_precision_is_computed_in_float32_on_the_cpu(tmp_path: Path, dtype: torch.dtype) -> None:
    model = theirs().to(dtype)
    model.save_pretrained(tmp_path)
    decoder = open_decoder(tmp_path)
    assert {array.dtype for _, array in tree_flatten(decoder.parameters())} == {mx.float32}
    assert_same_logits(tmp_path, their_logits(model))


def test_elsewhere_weights_keep_the_type_they_are_stored_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs().to(torch.bfloat16).save_pretrained(tmp_path)
    monkeypatch.setattr("mlxgen.device.compute_dtype", lambda stored: stored)
    decoder = open_decoder(tmp_path)
    assert {array.dtype for _, array in tree_flatten(decoder.parameters())} == {mx.bfloat16}


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
        ({"n_layer": 3}, r"missing transformer\.h\.2\.ln_1\.weight, .*transformer\.h\.2\.mlp\.c_proj\.bias"),
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
    with pytest.raises(ModelError, match=r"unexpected score\.weight"):
        open_decoder(tmp_path)


# --- packed folders, as mlx-lm's quantize writes them


def quantize(folder: Path, mode: str, group_size: int, bits: int, skip: str = "-") -> None:
    """Pack a checkpoint's two-dimensional weights in place, all but those whose path contains ``skip``."""
    decoder = open_decoder(folder)
    nn.quantize(
        decoder,
        group_size,
        bits,
        mode=mode,
        class_predicate=lambda path, module: hasattr(module, "to_quantized") and skip not in path,
    )
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(decoder.parameters())))
    edit_config(folder, quantization={"group_size": group_size, "bits": bits, "mode": mode})


@pytest.mark.parametrize(
    ("mode", "group_size", "bits"),
    [("affine", 64, 4), ("affine", 32, 8), ("affine", 64, 3), ("mxfp4", 32, 4), ("mxfp8", 32, 8)],
)
@pytest.mark.parametrize("tied", [True, False])
def test_packed_weights_unpacked_or_not_give_the_same_logits(
    tmp_path: Path, mode: str, group_size: int, bits: int, tied: bool
) -> None:
    theirs(tie_word_embeddings=tied).save_pretrained(tmp_path)
    exact = np.array(open_decoder(tmp_path)(mx.array(IDS)))
    quantize(tmp_path, mode, group_size, bits)
    plain, packed = open_decoder(tmp_path, packed=False), open_decoder(tmp_path, packed=True)
    assert isinstance(packed.layers[0].mlp.c_fc, nn.QuantizedLinear)
    assert type(plain.layers[0].mlp.c_fc) is nn.Linear
    logits = np.array(plain(mx.array(IDS)))
    np.testing.assert_allclose(np.array(packed(mx.array(IDS))), logits, atol=2e-3, rtol=1e-3)
    if bits == 8 and mode == "affine":
        assert np.corrcoef(logits.ravel(), exact.ravel())[0, 1] > 0.99


def test_only_the_layers_with_scales_are_packed(tmp_path: Path) -> None:
    theirs().save_pretrained(tmp_path)
    quantize(tmp_path, "affine", 32, 4, skip="attn")
    decoder = open_decoder(tmp_path, packed=True)
    assert isinstance(decoder.layers[1].mlp.c_fc, nn.QuantizedLinear)
    assert type(decoder.layers[1].attn.c_attn) is nn.Linear


# --- whole models


@pytest.mark.parametrize("packed", [True, False])
def test_a_tied_head_stored_packed_once_more_is_still_tied(tmp_path: Path, packed: bool) -> None:
    theirs().save_pretrained(tmp_path)
    quantize(tmp_path, "affine", 32, 8)
    plain = open_decoder(tmp_path, packed=packed)(mx.array(IDS))
    file = tmp_path / "model.safetensors"
    weights = dict(mx.load(str(file)))
    for part in ("weight", "scales", "biases"):
        weights[f"lm_head.{part}"] = mx.array(weights[f"model.wte.{part}"])
    mx.save_safetensors(str(file), weights)
    decoder = open_decoder(tmp_path, packed=packed)
    assert decoder.config.tie_word_embeddings
    assert mx.array_equal(decoder(mx.array(IDS)), plain)


def test_elsewhere_a_few_weights_of_another_type_take_that_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxgen.device.compute_dtype", lambda stored: stored)
    model = theirs().half()
    for name, module in model.named_modules():
        if "ln_" in name:
            module.float()
    model.save_pretrained(tmp_path)
    types = {array.dtype for _, array in tree_flatten(open_decoder(tmp_path).parameters())}
    assert types == {mx.float16}


def save_tokenizer(folder: Path, end: int = 96) -> None:
    vocabulary = {f"t{i}": i for i in range(97)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="t0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": f"t{end}", "unk_token": "t0"}))


def test_load_gives_a_whole_model(tmp_path: Path) -> None:
    model = theirs()
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path, end=95)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    loaded = mlxgen.load(str(tmp_path))
    assert loaded.name == str(tmp_path) and loaded.config == loaded.decoder.config
    assert loaded.end_tokens == {3, 4, 95, 96}
    prompt = loaded.tokenizer.encode("t1 t2 t3")
    assert prompt == [1, 2, 3]
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=200)
    tokens = list(prompt)
    for _ in range(8):
        tokens.append(int(mx.argmax(loaded.decoder(mx.array([tokens]))[0, -1]).item()))
    assert tokens == expected[0].tolist()


def test_end_tokens_come_from_three_places(tmp_path: Path) -> None:
    config = mlxgen.GPT2Config.from_dict({"model_type": "gpt2", "vocab_size": 50, "eos_token_id": 5})
    assert end_tokens(tmp_path, config, None) == {5}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [6, 5, 50256]}')
    assert end_tokens(tmp_path, config, 7) == {5, 6, 7}
    assert end_tokens(tmp_path, config, 50) == {5, 6}
    for wrong in ('{"eos_token_id": "x"}', "[]", "{"):
        (tmp_path / "generation_config.json").write_text(wrong)
        with pytest.raises(ModelError, match=r"generation_config\.json"):
            end_tokens(tmp_path, config, None)


def test_a_revision_of_a_folder_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="revision"):
        mlxgen.load(str(tmp_path), revision="main")


def test_a_folder_without_weights_points_to_convert_when_pytorch_has_them(tmp_path: Path) -> None:
    theirs().save_pretrained(tmp_path)
    shutil.move(tmp_path / "model.safetensors", tmp_path / "pytorch_model.bin")
    with pytest.raises(MlxgenError, match="mlxgen convert"):
        mlxgen.load(str(tmp_path))
