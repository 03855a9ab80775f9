"""Numbers that a file holds as they are in memory: mapped, so that only those in use take memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlxgen.errors import ModelError, reason_of

Array = Any  # a NumPy array

#: Tags of number types -> NumPy's. It has no bfloat16: the same bits, called uint16.
STORED_AS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def mapped_bytes(file: Path, offset: int, size: int) -> Array:
    """Some bytes of a file: uint8 [size]. Raises ModelError."""
    try:
        return np.asarray(np.memmap(file, np.uint8, "r", offset, (size,)))
    except (OSError, ValueError, OverflowError) as error:  # the file has become shorter
        raise ModelError(f"{file}: cannot be read ({reason_of(error)})") from None


def as_array(stored: Array, tag: str, shape: tuple[int, ...]) -> mx.array:
    """The numbers that some bytes stand for, in MLX's memory."""
    numbers = mx.array(np.require(stored.view(STORED_AS[tag]), requirements="A").reshape(shape))
    return numbers.view(mx.bfloat16) if tag == "BF16" else numbers
