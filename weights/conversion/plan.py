"""From a checkpoint's tensors to those that are written: transposed, cast, quantized, one at a time.

A `Job` knows the names, types and shapes of what it makes before it makes it, so a file's header can be written first
and no more than one parameter is ever in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx

from mlxgen.errors import OptionError
from mlxgen.network.config import GPT2Config, Quantization
from mlxgen.weights.files.headers import ITEMSIZE
from mlxgen.weights.layouts import HEAD, Layout, decoder_shapes
from mlxgen.weights.sources.record import Checkpoint

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
NAMES = {mx.float32: "F32", mx.float16: "F16", mx.bfloat16: "BF16", mx.uint32: "U32", mx.uint8: "U8"}
BY_NAME = {name: dtype for dtype, name in NAMES.items()}
EMBEDDINGS = ("model.wte", "model.wpe", "lm_head")  # what --keep-head leaves


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of a safetensors file."""

    name: str
    dtype: str  # safetensors' name
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEMSIZE[self.dtype]


@dataclass(frozen=True, slots=True)
class Job:
    """One parameter of the decoder: what will be written for it, and how to make that."""

    parts: tuple[Part, ...]
    make: Callable[[], Sequence[mx.array]]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """What the weights are to become. dtype: None leaves it as stored."""

    dtype: mx.Dtype | None = None
    quantization: Quantization | None = None
    keep_head: bool = False
    unpack: bool = False


@dataclass(frozen=True, slots=True)
class Weights:
    """A checkpoint's weights under the decoder's names, [out, in]."""

    checkpoint: Checkpoint
    config: GPT2Config
    layout: Layout

    def stored(self, target: str) -> mx.array:
        """One tensor as it is stored, turned to [out, in]; lazy."""
        source = self.layout.sources[target]
        array = self.checkpoint.tensors[source.name].read()
        return array.T if source.transpose else array

    def plain(self, target: str) -> mx.array:
        """One parameter as floating-point numbers, unpacked where it is packed; lazy."""
        path = target.removesuffix(".weight")
        entry = self.layout.packed.get(path) if target.endswith(".weight") else None
        if entry is None:
            return self.stored(target)
        biases = self.stored(f"{path}.biases") if f"{path}.biases" in self.layout.sources else None
        return mx.dequantize(
            self.stored(target),
            self.stored(f"{path}.scales"),
            biases,
            group_size=entry.group_size,
            bits=entry.bits,
            mode=entry.mode,
        )

    def plain_dtype(self, target: str) -> mx.Dtype:
        """The type of `plain`."""
        path = target.removesuffix(".weight")
        entry = self.layout.packed.get(path) if target.endswith(".weight") else None
        if entry is not None:
            if entry.mode != "affine":
                return mx.bfloat16  # what mx.dequantize makes of scales that are powers of two
            target = f"{path}.scales"
        return BY_NAME[self.layout.sources[target].tensor.dtype]


def jobs(weights: Weights, wanted: WeightFormat, warn: Callable[[str], None]) -> list[Job]:
    """What to write, in the decoder's order. Raises OptionError where nothing can be packed as wished."""
    shapes = decoder_shapes(weights.config)
    made = [_job(weights, target, shape, wanted, warn) for target, shape in shapes.items()]
    if wanted.quantization and not any(len(job.parts) > 1 for job in made):
        raise OptionError(
            f"groups of {wanted.quantization.group_size} do not divide the model's rows of {weights.config.n_embd}, "
            "so nothing could be quantized; choose a smaller --group-size, or none"
        )
    if wanted.quantization:
        group_size = wanted.quantization.group_size
        left = [name for name, shape in shapes.items() if len(shape) == 2 and shape[1] % group_size]
        if left:
            rows = f"groups of {group_size} do not divide their rows"
            warn(f"{len(left)} layers stay unquantized, {left[0]} first: {rows}")
    return made


def _job(
    weights: Weights, target: str, shape: tuple[int, ...], wanted: WeightFormat, warn: Callable[[str], None]
) -> Job:
    path = target.removesuffix(".weight")
    packed = target.endswith(".weight") and path in weights.layout.packed
    if packed and wanted.quantization is None and not wanted.unpack:
        return _packed_job(weights, path, wanted, warn)
    dtype = wanted.dtype or weights.plain_dtype(target)
    quantization = wanted.quantization
    if quantization is not None and _packable(path, shape, quantization, wanted.keep_head):
        return _quantized_job(weights, path, shape, dtype, quantization, warn)

    def make() -> Sequence[mx.array]:
        return [_sound(weights.plain(target), target, dtype, warn)]

    return Job((Part(target, NAMES[dtype], shape),), make)


def _packable(path: str, shape: tuple[int, ...], quantization: Quantization, keep_head: bool) -> bool:
    """mlx-lm's rule: every linear layer and embedding whose rows the groups divide."""
    if len(shape) != 2 or (keep_head and path in EMBEDDINGS):
        return False
    return shape[1] % quantization.group_size == 0


def _quantized_job(
    weights: Weights,
    path: str,
    shape: tuple[int, ...],
    dtype: mx.Dtype,
    quantization: Quantization,
    warn: Callable[[str], None],
) -> Job:
    rows, columns = shape
    group_size, bits = quantization.group_size, quantization.bits
    groups = (rows, columns // group_size)
    parts = (
        Part(f"{path}.weight", "U32", (rows, columns * bits // 32)),
        Part(f"{path}.scales", NAMES[dtype], groups),
        Part(f"{path}.biases", NAMES[dtype], groups),
    )

    def make() -> Sequence[mx.array]:
        array = _sound(weights.plain(f"{path}.weight"), f"{path}.weight", dtype, warn)
        return mx.quantize(array, group_size=group_size, bits=bits)  # what nn.quantize stores

    return Job(parts, make)


def _packed_job(weights: Weights, path: str, wanted: WeightFormat, warn: Callable[[str], None]) -> Job:
    """A packed layer that stays packed; its scales and biases can change type."""
    parts, casts = [], []
    for kind in ("weight", "scales", "biases"):
        source = weights.layout.sources.get(f"{path}.{kind}")
        if source is None:
            continue
        stored = BY_NAME[source.tensor.dtype]
        dtype = wanted.dtype if wanted.dtype is not None and mx.issubdtype(stored, mx.floating) else stored
        parts.append(Part(f"{path}.{kind}", NAMES[dtype], source.tensor.shape))
        casts.append((f"{path}.{kind}", dtype))

    def make() -> Sequence[mx.array]:
        return [_sound(weights.stored(target), target, dtype, warn) for target, dtype in casts]

    return Job(tuple(parts), make)


def _sound(array: mx.array, target: str, dtype: mx.Dtype, warn: Callable[[str], None]) -> mx.array:
    """The array in its new type; NaN and infinities are told, once for each tensor."""
    cast = mx.contiguous(array.astype(dtype))
    if mx.issubdtype(dtype, mx.floating) and not mx.isfinite(cast).all().item():
        if mx.isnan(array).any().item():
            warn(f"{target} holds NaN: the model cannot work")
        elif not mx.isfinite(array).all().item():
            warn(f"{target} holds infinite values")
        else:
            warn(f"{target} holds values too large for {str(dtype).removeprefix('mlx.core.')}: they became infinite")
    return cast


def heads_differ(weights: Weights) -> bool:
    """Whether a head that the config calls tied is a matrix of its own after all (transformers' rule)."""
    return not mx.array_equal(weights.plain(HEAD), weights.plain("model.wte.weight")).item()


def nbytes(layout: Layout) -> int:
    """Bytes of a checkpoint's weights."""
    return sum(math.prod(source.tensor.shape) * ITEMSIZE[source.tensor.dtype] for source in layout.sources.values())


def main_dtype(parts: Mapping[str, Part] | Sequence[Part]) -> str:
    """The floating-point type that most numbers have: "float32"."""
    listed = list(parts.values()) if isinstance(parts, Mapping) else parts
    counts = {name: sum(math.prod(p.shape) for p in listed if p.dtype == NAMES[d]) for name, d in DTYPES.items()}
    return max(counts, key=lambda name: counts[name])
