"""Folders that mlx-lm quantized give the same logits, whether their layers stay packed or not."""

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlxgen.weights.load import open_decoder

from .transformers_gpt2 import IDS, edit_config, theirs


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
