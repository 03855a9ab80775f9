"""Folders that mlx-lm quantized give the same logits, whether their layers stay packed or not."""

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlxgen.generation.batching import fitting_batch_size
from mlxgen.generation.session import Session
from mlxgen.generation.session_file import SessionFileError
from mlxgen.model import Model
from mlxgen.weights.load import open_decoder

from ..support import oracles
from .transformers_gpt2 import IDS, edit_config, theirs


def quantize(folder: Path, mode: str, group_size: int, bits: int, skip: str = "-", dtype: str | None = None) -> None:
    """Pack a checkpoint's two-dimensional weights in place, all but those whose path contains ``skip``.

    dtype: of the scales and of what is not packed.
    """
    decoder = open_decoder(folder)
    if dtype:
        decoder.set_dtype(getattr(mx, dtype))
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


@pytest.mark.parametrize("packed", [True, False])
def test_packed_weights_with_float16_scales_give_the_exact_logits(tmp_path: Path, packed: bool) -> None:
    """Against NumPy in float64 on the numbers that the folder holds; unpacked in float16 they would be 0.01 off."""
    theirs().half().save_pretrained(tmp_path)
    quantize(tmp_path, "affine", 64, 4, dtype="float16")
    arrays = dict(mx.load(str(tmp_path / "model.safetensors")))
    exact: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        path = name.removesuffix(".weight")
        if path + ".scales" in arrays and name.endswith(".weight"):
            codes = np.array(array).view(np.uint8)  # two numbers of 4 bits a byte, the low one first
            numbers = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1, 64).astype(np.float64)
            scales, biases = (
                np.array(arrays[f"{path}.{kind}"]).astype(np.float64)[..., None] for kind in ("scales", "biases")
            )
            exact[name] = (numbers * scales + biases).reshape(len(codes), -1)
        elif not name.endswith((".scales", ".biases")):
            exact[name] = np.array(array.astype(mx.float32)).astype(np.float64)
    decoder = open_decoder(tmp_path, packed=packed, dtype="float32")
    expected = np.stack([oracles.numpy_logits(exact, decoder.config, row) for row in IDS])
    np.testing.assert_allclose(np.array(decoder(mx.array(IDS))), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [None, "float16"])
@pytest.mark.parametrize(("mode", "group_size", "bits"), [("affine", 32, 8), ("affine", 64, 3), ("mxfp4", 32, 4)])
def test_a_saved_session_opens_whether_the_weights_are_packed_or_not(
    tmp_path: Path, mode: str, group_size: int, bits: int, dtype: str | None
) -> None:
    """Packed as on a GPU, unpacked to float32 as on the CPU."""
    theirs().save_pretrained(tmp_path)
    quantize(tmp_path, mode, group_size, bits, dtype=dtype)
    packed, unpacked = (
        Model("m", decoder.config, decoder, None, frozenset())  # type: ignore[arg-type]  # ids need no text
        for decoder in (open_decoder(tmp_path, packed=True), open_decoder(tmp_path, packed=False, dtype="float32"))
    )
    session = Session(packed)
    session.extend([1, 2, 3])
    mx.eval(session.prefill())
    opened = Session.load(session.save(tmp_path / "session"), unpacked)
    assert opened.processed == 3
    arrays = dict(mx.load(str(tmp_path / "model.safetensors")))
    at = "model.h.1.mlp.c_fc.weight"
    arrays[at] = arrays[at] ^ 1  # the lowest bit of some numbers
    mx.save_safetensors(str(tmp_path / "model.safetensors"), arrays)
    changed = open_decoder(tmp_path, packed=False, dtype="float32")
    with pytest.raises(SessionFileError, match="another model"):
        Session.load(tmp_path / "session.safetensors", Model("m", changed.config, changed, None, frozenset()))  # type: ignore[arg-type]


def test_the_batch_size_that_fits_counts_packed_weights_caches_in_the_type_computed_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs().save_pretrained(tmp_path)
    quantize(tmp_path, "affine", 32, 8, dtype="float16")
    sizes = []
    for packed in (True, False):
        decoder = open_decoder(tmp_path, packed=packed, dtype="float16")
        assert decoder.compute_dtype == mx.float16
        model = Model("m", decoder.config, decoder, None, frozenset())  # type: ignore[arg-type]
        monkeypatch.setattr("mlxgen.device.free_memory", lambda: 400_000)
        sizes.append(fitting_batch_size(model))
    assert 1 < sizes[0] == sizes[1] < 32


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
