"""The weights of a checkpoint as lazy arrays under the decoder's names, as stored or unpacked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import mlx.core as mx

from mlxgen.dtypes import BFLOAT16, BY_TAG, DType
from mlxgen.network.config import GPT2Config, Quantization
from mlxgen.weights.layouts import HEAD, Layout, ParameterSource

Read = Callable[[ParameterSource], mx.array]


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """A matched checkpoint whose tensors are read by name. Weights are [out, in]. Made by `decoder_weights`."""

    config: GPT2Config
    layout: Layout
    read: Read

    def stored(self, target: str) -> mx.array:
        """One tensor as it is stored, turned to [out, in]; lazy."""
        source = self.layout.sources[target]
        array = self.read(source)
        return array.T if source.transpose else array

    def unpacked(self, target: str, dtype: mx.Dtype | None = None) -> mx.array:
        """One parameter as floating-point numbers, whether it is packed or not; lazy.

        dtype: the type to unpack in, where the packing leaves it open; None is that of the scales.
        """
        path = target.removesuffix(".weight")
        entry = self._packing(target)
        if entry is None:
            return self.stored(target)
        biases = self.stored(f"{path}.biases") if f"{path}.biases" in self.layout.sources else None
        scales = self.stored(f"{path}.scales")
        if dtype is not None and biases is not None:  # in other modes the numbers fit into 16 bits exactly
            scales, biases = scales.astype(dtype), biases.astype(dtype)
        return mx.dequantize(
            self.stored(target),
            scales,
            biases,
            group_size=entry.group_size,
            bits=entry.bits,
            mode=entry.mode,
        )

    def unpacked_dtype(self, target: str) -> DType:
        """The type that `unpacked` gives."""
        entry = self._packing(target)
        if entry is not None and entry.mode != "affine":
            return BFLOAT16  # mx.dequantize gives it for scales that are powers of two
        source = target if entry is None else target.removesuffix("weight") + "scales"
        return BY_TAG[self.layout.sources[source].tensor.dtype]

    def _packing(self, target: str) -> Quantization | None:
        return self.layout.packed.get(target.removesuffix(".weight")) if target.endswith(".weight") else None


def decoder_weights(config: GPT2Config, layout: Layout, read: Read) -> DecoderWeights:
    """The weights of a matched checkpoint.

    If the checkpoint has a head although the config ties it to the embedding, the two are compared, as in transformers.
    A head that equals the embedding is dropped. One that differs is kept, and the config then no longer ties it.
    """
    weights = DecoderWeights(config, layout, read)
    if not config.tie_word_embeddings or HEAD not in layout.sources:
        return weights
    head = [target for target in layout.sources if target.startswith("lm_head.")]
    pairs = [(target, target.replace("lm_head", "model.wte")) for target in head]
    if all(b in layout.sources and same_numbers(weights.stored(a), weights.stored(b)) for a, b in pairs):
        sources = {target: source for target, source in layout.sources.items() if target not in head}
        packed = {path: entry for path, entry in layout.packed.items() if path != "lm_head"}
        return replace(weights, layout=replace(weights.layout, sources=sources, packed=packed))
    return replace(weights, config=replace(config, tie_word_embeddings=False))


def same_numbers(a: mx.array, b: mx.array) -> bool:
    """Whether two arrays have the same shape and the same numbers; NaN equals NaN."""
    return bool(mx.array_equal(a, b, equal_nan=mx.issubdtype(a.dtype, mx.floating)).item())
