"""The tensors that a checkpoint's safetensors files say they hold, read without touching a single weight."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mlxgen.dtypes import WEIGHT_TYPES, DType
from mlxgen.errors import ModelError, printable, reason_of
from mlxgen.lfs_pointer import check_not_pointer
from mlxgen.safetensors_header import HeaderError, TensorEntry, read_header


@dataclass(frozen=True, slots=True)
class StoredTensor(TensorEntry):
    """One tensor as its file describes it."""

    file: Path
    narrowed: bool = False  # from float64, which MLX's GPUs do not have, to float32 when it is read


def read_headers(files: Iterable[Path]) -> dict[str, StoredTensor]:
    """Every tensor of some safetensors files, by name. Raises ModelError for a damaged file."""
    stored: dict[str, StoredTensor] = {}
    for file in files:
        try:
            tensors = read_header(file).tensors
        except HeaderError as error:
            check_not_pointer(file)
            raise ModelError(f"{file}: {error}; download it again") from None
        except OSError as error:
            raise ModelError(f"{file}: cannot be read ({reason_of(error)})") from None
        for name, tensor in tensors.items():
            if name in stored:
                both = f"{stored[name].file.name} and {file.name}"
                raise ModelError(f"{file.parent}: {printable(name)} is in both {both}; download the model again")
            narrowed = tensor.dtype == "F64"
            stored[name] = StoredTensor("F32" if narrowed else tensor.dtype, tensor.shape, file, narrowed)
    return stored


def main_dtype(tensors: Iterable[TensorEntry]) -> DType:
    """The floating-point type that most of the numbers have."""
    counts = dict.fromkeys((dtype.tag for dtype in WEIGHT_TYPES), 0)
    for tensor in tensors:
        if tensor.dtype in counts:
            counts[tensor.dtype] += math.prod(tensor.shape)
    return max(WEIGHT_TYPES, key=lambda dtype: counts[dtype.tag])
