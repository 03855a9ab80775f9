"""The tensors of safetensors files as MLX's arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxgen.errors import ModelError, reason_of
from mlxgen.safetensors_header import read_header


def tensor_reader(file: Path) -> Callable[[str], mx.array]:
    """Reads the tensors of a safetensors file by name. Each array is lazy: it is read when it is evaluated.

    A file with float64, which MLX does not open, is read through NumPy, and float64 becomes float32. Raises ModelError.
    """
    try:
        if any(tensor.dtype == "F64" for tensor in read_header(file).tensors.values()):
            return lambda name: _narrowed(file, name)
        arrays: Any = mx.load(str(file))
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{file}: cannot be read ({reason_of(error)}); download it again") from None
    return lambda name: arrays[name]


def _narrowed(file: Path, name: str) -> mx.array:
    import numpy as np
    from safetensors import safe_open

    try:
        with safe_open(file, framework="numpy") as opened:
            array = opened.get_tensor(name)
    except Exception as error:  # the library's own errors, and types that NumPy does not have
        raise ModelError(f"{file}: {name} cannot be read ({reason_of(error)})") from None
    return mx.array(array.astype(np.float32) if array.dtype == np.float64 else array)
