"""The weights of a matched checkpoint: which head they have, and the types that they are unpacked to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from mlxgen.dtypes import BY_NAME, name_of
from mlxgen.network.config import Quantization
from mlxgen.weights.files.headers import StoredTensor
from mlxgen.weights.layouts import HEAD, Layout, ParameterSource
from mlxgen.weights.parameters import DecoderWeights, decoder_weights, same_numbers

from ..support.models import tiny_gpt2

EMBEDDING = "model.wte.weight"
TIED = tiny_gpt2().config


def weights(arrays: dict[str, mx.array], **packed: Quantization) -> tuple[Layout, DecoderWeights]:
    """A checkpoint that consists of these arrays, under the decoder's names; packed: by path, with _ for a dot."""
    sources = {
        name: ParameterSource(
            name, StoredTensor(BY_NAME[name_of(array.dtype)].tag, array.shape, Path()), transpose=False
        )
        for name, array in arrays.items()
    }
    layout = Layout(sources, {path.replace("_", "."): entry for path, entry in packed.items()})
    return layout, decoder_weights(TIED, layout, lambda source: arrays[source.name])


def test_a_head_that_equals_the_embedding_is_dropped_also_with_nan_in_both() -> None:
    embedding = mx.array([[1.0, float("nan")], [2.0, 3.0]])
    _, found = weights({EMBEDDING: embedding, HEAD: mx.array(embedding)})
    assert HEAD not in found.layout.sources and found.config == TIED


def test_a_head_that_differs_is_kept_and_the_config_unties_it() -> None:
    layout, found = weights({EMBEDDING: mx.ones((2, 2)), HEAD: mx.zeros((2, 2))})
    assert found.layout == layout and found.config == replace(TIED, tie_word_embeddings=False)


def test_arrays_of_other_shapes_or_numbers_are_not_the_same() -> None:
    assert same_numbers(mx.array([1, 2], mx.uint32), mx.array([1, 2], mx.uint32))
    assert not same_numbers(mx.ones((2, 3)), mx.ones((3, 2)))
    assert not same_numbers(mx.array([1.0, 2.0]), mx.array([1.0, float("nan")]))
    assert same_numbers(mx.array([1.0], mx.float16), mx.array([1.0], mx.float32))


@pytest.mark.parametrize(
    ("mode", "bits", "dtype"), [("affine", 4, mx.float16), ("affine", 8, mx.bfloat16), ("mxfp4", 4, mx.float32)]
)
def test_the_type_of_unpacked_weights_is_known_before_they_are_read(mode: str, bits: int, dtype: mx.Dtype) -> None:
    packed = mx.quantize(mx.random.normal((4, 64), key=mx.random.key(0)).astype(dtype), 32, bits, mode=mode)
    arrays = {f"model.wte.{kind}": part for kind, part in zip(("weight", "scales", "biases"), packed, strict=False)}
    _, found = weights(arrays, model_wte=Quantization(32, bits, mode))
    assert found.unpacked(EMBEDDING).dtype == found.unpacked_dtype(EMBEDDING).mlx
    assert found.unpacked(EMBEDDING).shape == (4, 64)
