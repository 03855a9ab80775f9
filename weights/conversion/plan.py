"""What a conversion writes: each of the decoder's parameters cast, quantized or unpacked.

The names, types and shapes are planned first and the numbers are computed later, one parameter at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

from mlxgen.dtypes import BY_TAG, FLOAT32, WEIGHT_TYPES, DType
from mlxgen.errors import OptionError
from mlxgen.network.config import Quantization
from mlxgen.safetensors_header import TensorEntry
from mlxgen.weights.conversion.weight_format import WeightFormat
from mlxgen.weights.files.writer import TensorGroup
from mlxgen.weights.layouts import decoder_shapes
from mlxgen.weights.parameters import DecoderWeights

EMBEDDINGS = ("model.wte", "model.wpe", "lm_head")  # what --keep-head leaves as they are

Shape = tuple[int, ...]
Warn = Callable[[str], None]


def plan_tensors(weights: DecoderWeights, target_format: WeightFormat, warn: Warn) -> list[TensorGroup]:
    """What to write for each parameter, in the decoder's order. warn is also called while they are computed.

    Raises OptionError where no layer can be quantized as asked.
    """
    shapes = decoder_shapes(weights.config)
    groups = [_parameter(weights, name, shape, target_format, warn) for name, shape in shapes.items()]
    if target_format.quantization is None:
        return groups
    group_size = target_format.quantization.group_size
    if not is_quantized(groups):
        raise OptionError(
            f"no layer can be quantized, because rows of {weights.config.n_embd} weights cannot be split into groups "
            f"of {group_size}; choose a smaller --group-size, or do not quantize"
        )
    left = [name for name, shape in shapes.items() if len(shape) == 2 and shape[1] % group_size]
    if left:
        reason = f"their rows cannot be split into groups of {group_size}"
        warn(f"{len(left)} layers are not quantized, because {reason} (the first is {left[0]})")
    return groups


def is_quantized(groups: Sequence[TensorGroup]) -> bool:
    """Whether any layer has scales besides its weight."""
    return any(len(group.tensors) > 1 for group in groups)


def _parameter(
    weights: DecoderWeights, name: str, shape: Shape, target_format: WeightFormat, warn: Warn
) -> TensorGroup:
    path = name.removesuffix(".weight")
    packed = name.endswith(".weight") and path in weights.layout.packed
    quantization = target_format.quantization
    if packed and quantization is None and not target_format.dequantize:
        if path in weights.packed:
            return _packed_layer(weights, path, target_format.dtype, warn)
        entry = weights.layout.packed[path]  # an adapter has changed it: it is packed again as it was
        return _quantized_layer(weights, path, shape, target_format.dtype or weights.unpacked_dtype(name), entry, warn)
    dtype = target_format.dtype or weights.unpacked_dtype(name)
    if quantization is not None and _quantizable(path, shape, quantization, target_format.keep_head):
        return _quantized_layer(weights, path, shape, dtype, quantization, warn)

    def compute() -> Sequence[mx.array]:
        # Otherwise, packed numbers would be rounded to the type of their scales.
        exact = mx.float32 if dtype == FLOAT32 else None
        return [cast(weights.unpacked(name, exact), name, dtype, warn)]

    return TensorGroup({name: TensorEntry(dtype.tag, shape)}, compute)


def _quantizable(path: str, shape: Shape, quantization: Quantization, keep_head: bool) -> bool:
    """mlx-lm's rule: every linear layer and embedding whose rows can be split into groups."""
    if len(shape) != 2 or (keep_head and path in EMBEDDINGS):
        return False
    return shape[1] % quantization.group_size == 0


def _quantized_layer(
    weights: DecoderWeights, path: str, shape: Shape, dtype: DType, quantization: Quantization, warn: Warn
) -> TensorGroup:
    rows, columns = shape
    group_size, bits, mode = quantization.group_size, quantization.bits, quantization.mode
    groups = (rows, columns // group_size)
    tensors = {f"{path}.weight": TensorEntry("U32", (rows, columns * bits // 32))}
    if mode == "affine":
        tensors |= {f"{path}.{kind}": TensorEntry(dtype.tag, groups) for kind in ("scales", "biases")}
    else:
        tensors[f"{path}.scales"] = TensorEntry("U8", groups)

    def compute() -> Sequence[mx.array]:
        array = cast(weights.unpacked(f"{path}.weight"), f"{path}.weight", dtype, warn)
        return mx.quantize(array, group_size=group_size, bits=bits, mode=mode)  # what nn.quantize stores

    return TensorGroup(tensors, compute)


def _packed_layer(weights: DecoderWeights, path: str, dtype: DType | None, warn: Warn) -> TensorGroup:
    """A quantized layer that stays as it is, but for the type of its scales and biases."""
    tensors: dict[str, TensorEntry] = {}
    for name in weights.part_names(path):
        stored = weights.layout.sources[name].tensor
        is_float = BY_TAG[stored.dtype] in WEIGHT_TYPES
        tag = dtype.tag if dtype is not None and is_float else stored.dtype
        tensors[name] = TensorEntry(tag, stored.shape)

    def compute() -> Sequence[mx.array]:
        return [cast(weights.stored(name), name, BY_TAG[entry.dtype], warn) for name, entry in tensors.items()]

    return TensorGroup(tensors, compute)


def cast(array: mx.array, name: str, dtype: DType, warn: Warn) -> mx.array:
    """The array in its new type, with a warning where it contains NaN or infinities."""
    cast = mx.contiguous(array.astype(dtype.mlx))
    if dtype in WEIGHT_TYPES and not mx.isfinite(cast).all().item():
        if mx.isnan(array).any().item():
            warn(f"{name} contains NaN, so the model will not work")
        elif not mx.isfinite(array).all().item():
            warn(f"{name} contains infinite values")
        else:
            warn(f"{name} contains values too large for {dtype.name}, which became infinite")
    return cast
