"""Writing a GGUF file that llama.cpp opens, one tensor at a time.

Names, types and metadata are those of llama.cpp's own conversion (convert_hf_to_gguf.py): weights as [out, in], and
float32 for the position table and everything with one dimension. The format is described in `sources.gguf_header`.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlxgen.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from mlxgen.errors import ModelError
from mlxgen.network.config import ACTIVATIONS, GPT2Config
from mlxgen.weights.conversion.plan import Warn, cast
from mlxgen.weights.conversion.weight_format import WeightFormat
from mlxgen.weights.files.writer import WriteProgress
from mlxgen.weights.layouts import EMBEDDING, HEAD, decoder_shapes
from mlxgen.weights.parameters import DecoderWeights
from mlxgen.weights.sources.gguf_header import ALIGNMENT, LIST, MAGIC, TEXT
from mlxgen.weights.sources.gguf_names import HEAD as HEAD_NAMES
from mlxgen.weights.sources.gguf_names import decoder_names
from mlxgen.weights.sources.gguf_types import GROUP, TYPES, Array

VERSION = 3
UINT32, INT32, FLOAT32_VALUE, BOOL = 4, 5, 6, 7  # types of entries
POSITIONS = "model.wpe.weight"

#: Names of types -> their numbers in the table of tensors, and the number of a file that is mostly of that type.
TYPE_NUMBERS = {kind.name: number for number, kind in TYPES.items()}
FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "BF16": 32}
ROWS_AT_ONCE = 4096  # of a weight that is quantized


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A tensor to write. type: its name. compute: its numbers as an array of as many bytes as `nbytes`."""

    name: str
    type: str
    shape: tuple[int, ...]
    compute: Callable[[], Array]

    @property
    def nbytes(self) -> int:
        kind = TYPES[TYPE_NUMBERS[self.type]]
        return math.prod(self.shape) // kind.n_numbers * kind.n_bytes


def check_gguf(config: GPT2Config) -> None:
    """Raise ModelError for a model that llama.cpp's gpt2 would compute differently."""
    problems = []
    if ACTIVATIONS[config.activation_function] != "gelu_tanh":
        problems.append(f"the activation {config.activation_function} (it has gelu_new)")
    if not config.scale_attn_weights:
        problems.append("unscaled attention (scale_attn_weights false)")
    if config.scale_attn_by_inverse_layer_idx:
        problems.append("scale_attn_by_inverse_layer_idx")
    if problems:
        raise ModelError(f"llama.cpp's gpt2 does not support {' or '.join(problems)}; write --to hf")


def gguf_type(weights: DecoderWeights, target_format: WeightFormat) -> str:
    """The type of most weights in the file, as llama.cpp calls it."""
    if target_format.quantization is not None:
        return "Q8_0"
    dtype = target_format.dtype or weights.unpacked_dtype(EMBEDDING)
    return {FLOAT32: "F32", FLOAT16: "F16", BFLOAT16: "BF16"}[dtype]


def gguf_tensors(weights: DecoderWeights, main: str, *, keep_head: bool, warn: Warn) -> list[GGUFTensor]:
    """What to write for each parameter. main: see `gguf_type`. warn is also called while they are computed."""
    shapes = decoder_shapes(weights.config)
    names = {target: name for name, target in (*decoder_names(weights.config.n_layer), *HEAD_NAMES.items())}
    tensors = []
    for target, shape in shapes.items():
        kind = "F32" if len(shape) == 1 or target == POSITIONS else main
        if kind == "Q8_0" and ((keep_head and target in (EMBEDDING, HEAD)) or shape[1] % GROUP):
            kind = "F16"
        tensors.append(GGUFTensor(names[target], kind, shape, _computing(weights, target, kind, warn)))
    rows = weights.config.n_embd
    if main == "Q8_0" and rows % GROUP:
        warn(f"rows of {rows} weights cannot be split into groups of {GROUP}, so most weights are float16")
    return tensors


def model_entries(config: GPT2Config, name: str, main: str) -> dict[str, Any]:
    """The metadata, up to the tokenizer's."""
    return {
        "general.architecture": "gpt2",
        "general.type": "model",
        "general.name": name,
        "general.size_label": _size_label(config.n_parameters),
        "gpt2.block_count": config.n_layer,
        "gpt2.context_length": config.n_positions,
        "gpt2.embedding_length": config.n_embd,
        "gpt2.feed_forward_length": config.n_inner,
        "gpt2.attention.head_count": config.n_head,
        "gpt2.attention.layer_norm_epsilon": config.layer_norm_epsilon,
        "general.file_type": FILE_TYPES[main],
        "general.quantization_version": 2,
    }


def write_gguf(
    file: Path, metadata: Mapping[str, Any], tensors: Sequence[GGUFTensor], progress: WriteProgress | None = None
) -> None:
    """Write a file. Raises OSError."""
    with file.open("wb") as stream:
        stream.write(_header(metadata, tensors))
        for written, tensor in enumerate(tensors, 1):
            data = np.ascontiguousarray(tensor.compute())
            if data.nbytes != tensor.nbytes:
                raise AssertionError(f"{tensor.name} has {data.nbytes} bytes, its table says {tensor.nbytes}")
            stream.write(data.reshape(-1).view(np.uint8).data)
            stream.write(bytes(-data.nbytes % ALIGNMENT))
            mx.clear_cache()
            if progress is not None:
                progress(written, len(tensors), tensor.name)
        stream.flush()
        os.fsync(stream.fileno())


def _header(metadata: Mapping[str, Any], tensors: Sequence[GGUFTensor]) -> bytes:
    """The file up to its data."""
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(metadata))]
    parts += [_text(key) + _value(value) for key, value in metadata.items()]
    offset = 0
    for tensor in tensors:
        sizes = tensor.shape[::-1]  # the innermost first
        number = TYPE_NUMBERS[tensor.type]
        parts.append(_text(tensor.name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, number, offset))
        offset += math.ceil(tensor.nbytes / ALIGNMENT) * ALIGNMENT
    header = b"".join(parts)
    return header + bytes(-len(header) % ALIGNMENT)


def _value(value: Any) -> bytes:
    """The type and value of an entry."""
    if isinstance(value, list):
        kind = TEXT if isinstance(value[0], str) else INT32
        items = b"".join(map(_text, value)) if kind == TEXT else struct.pack(f"<{len(value)}i", *value)
        return struct.pack("<IIQ", LIST, kind, len(value)) + items
    if isinstance(value, str):
        return struct.pack("<I", TEXT) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    return struct.pack("<If", FLOAT32_VALUE, value) if isinstance(value, float) else struct.pack("<II", UINT32, value)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _size_label(n_parameters: int) -> str:
    """Such as "124M"."""
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if n_parameters >= unit:
            number = n_parameters / unit
            return f"{number:.1f}{name}" if number < 9.95 else f"{number:.0f}{name}"
    return str(n_parameters)


def _computing(weights: DecoderWeights, target: str, kind: str, warn: Warn) -> Callable[[], Array]:
    dtype: DType = {"F16": FLOAT16, "BF16": BFLOAT16}.get(kind, FLOAT32)

    def compute() -> Array:
        exact = mx.float32 if dtype == FLOAT32 else None
        array = cast(weights.unpacked(target, exact), target, dtype, warn)
        mx.eval(array)
        if kind == "Q8_0":
            return quantized_q8_0(np.array(array, copy=False))
        return np.array(array.view(mx.uint16) if kind == "BF16" else array, copy=False)

    return compute


def quantized_q8_0(weight: Array) -> Array:
    """Blocks of Q8_0, rounded as llama.cpp rounds. weight: float32 [rows, columns]. Returns uint8 [rows, …]."""
    rows, columns = weight.shape
    blocks = np.empty((rows, columns // GROUP, TYPES[TYPE_NUMBERS["Q8_0"]].n_bytes), np.uint8)
    for begin in range(0, rows, ROWS_AT_ONCE):
        part = weight[begin : begin + ROWS_AT_ONCE].reshape(-1, columns // GROUP, GROUP)
        scale = np.abs(part).max(axis=-1, keepdims=True) / np.float32(127)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            scaled = part * np.where(scale == 0, np.float32(0), np.float32(1) / scale)
            whole = np.floor(np.abs(scaled))
            whole += np.floor(2 * (np.abs(scaled) - whole))  # halves away from zero
            numbers = (np.sign(scaled) * whole).astype(np.int8)
            blocks[begin : begin + ROWS_AT_ONCE, :, :2] = scale.astype("<f2").view(np.uint8)
        blocks[begin : begin + ROWS_AT_ONCE, :, 2:] = numbers.view(np.uint8)
    return blocks
