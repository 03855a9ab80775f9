"""The weights of a checkpoint as lazy arrays under the decoder's names, as stored or unpacked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import mlx.core as mx

from mlxgen.dtypes import BFLOAT16, BY_TAG, DType
from mlxgen.network.config import GPT2Config, Quantization
from mlxgen.weights.layouts import HEAD, Layout, ParameterSource, decoder_shapes

Read = Callable[[ParameterSource], mx.array]


@dataclass(frozen=True, slots=True)
class Change:
    """What an adapter makes of a parameter. base: the stored parameter that it begins with, of the same name or not.

    apply: from float32 [out, in] to the same type; a new vocabulary gives another number of rows.
    """

    base: str
    apply: Callable[[mx.array], mx.array]


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """A matched checkpoint whose tensors are read by name. Weights are [out, in]. Made by `decoder_weights`.

    changes: the parameters that an adapter changes, by their names.
    """

    config: GPT2Config
    layout: Layout
    read: Read
    changes: Mapping[str, Change] = field(default_factory=dict)

    @property
    def packed(self) -> dict[str, Quantization]:
        """The layers that are packed as they are stored. One that an adapter changes is not."""
        packed = self.layout.packed.items()
        return {path: entry for path, entry in packed if f"{path}.weight" not in self.changes}

    def bytes_where_packed(self, itemsize: int) -> int:
        """Bytes in memory where packed layers stay packed, but for those that an adapter changes.

        itemsize: of their numbers.
        """
        changed = [path for path in self.layout.packed if path not in self.packed]
        before = sum(self.layout.sources[name].tensor.nbytes for path in changed for name in self.part_names(path))
        shapes = decoder_shapes(self.config)
        after = sum(math.prod(shapes[f"{path}.weight"]) * itemsize for path in changed)
        return self.layout.nbytes - before + after

    def stored(self, target: str) -> mx.array:
        """One tensor as it is stored, turned to [out, in]; lazy."""
        source = self.layout.sources[target]
        array = self.read(source)
        return array.T if source.transpose else array

    def part_names(self, path: str) -> list[str]:
        """The names of a packed layer's tensors: its weight, scales, and biases where it has them."""
        names = (f"{path}.{kind}" for kind in ("weight", "scales", "biases"))
        return [name for name in names if name in self.layout.sources]

    def stored_parts(self, path: str) -> dict[str, mx.array]:
        """The tensors of a packed layer, by their names; lazy."""
        return {name: self.stored(name) for name in self.part_names(path)}

    def unpacked(self, target: str, dtype: mx.Dtype | None = None) -> mx.array:
        """One parameter as floating-point numbers, whether it is packed or not; lazy.

        dtype: the type to unpack in, where the packing leaves it open; None is that of the scales. A parameter that an
        adapter changes is float32.
        """
        change = self.changes.get(target)
        if change is not None:
            return change.apply(self._unpacked(change.base, mx.float32).astype(mx.float32))
        return self._unpacked(target, dtype)

    def unpacked_dtype(self, target: str) -> DType:
        """The type that the stored parameter is unpacked to."""
        target = self.changes[target].base if target in self.changes else target
        entry = self._packing(target)
        if entry is not None and entry.mode != "affine":
            return BFLOAT16  # mx.dequantize gives it for scales that are powers of two
        source = target if entry is None else target.removesuffix("weight") + "scales"
        return BY_TAG[self.layout.sources[source].tensor.dtype]

    def _unpacked(self, target: str, dtype: mx.Dtype | None) -> mx.array:
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
