"""The tensors of safetensors files as MLX's lazy arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxgen.errors import ModelError, reason_of


def load_arrays(file: Path) -> dict[str, mx.array]:
    """The tensors of a safetensors file by name; each is read when it is evaluated. Raises ModelError."""
    try:
        arrays: Any = mx.load(str(file))
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{file}: cannot be read ({reason_of(error)}); download it again") from None
    return dict(arrays)
