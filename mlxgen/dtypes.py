"""The number types of checkpoints: one table of their names and sizes.

MLX is imported only for its own types, so that a file's header can be read without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mlx.core as mx


@dataclass(frozen=True, slots=True)
class DType:
    """One number type."""

    tag: str  # in a safetensors header: "F32"
    name: str  # in MLX, NumPy, PyTorch, a config.json and on the command line: "float32"
    itemsize: int  # bytes of one number

    @property
    def mlx(self) -> mx.Dtype:
        """The MLX type. Raises AttributeError if MLX has none, as for 8-bit floats."""
        import mlx.core as mx

        dtype: mx.Dtype = getattr(mx, "bool_" if self.name == "bool" else self.name)
        return dtype


FLOAT32 = DType("F32", "float32", 4)
FLOAT16 = DType("F16", "float16", 2)
BFLOAT16 = DType("BF16", "bfloat16", 2)

#: The types that weights may have if they are not quantized.
WEIGHT_TYPES = (FLOAT32, FLOAT16, BFLOAT16)

#: Every type that a header may have. Types of less than a byte do not occur in GPT-2 checkpoints.
TABLE = (
    *WEIGHT_TYPES,
    DType("F64", "float64", 8),
    DType("F8_E4M3", "float8_e4m3fn", 1),
    DType("F8_E5M2", "float8_e5m2", 1),
    DType("I64", "int64", 8),
    DType("I32", "int32", 4),
    DType("I16", "int16", 2),
    DType("I8", "int8", 1),
    DType("U64", "uint64", 8),
    DType("U32", "uint32", 4),
    DType("U16", "uint16", 2),
    DType("U8", "uint8", 1),
    DType("BOOL", "bool", 1),
)
BY_TAG = {dtype.tag: dtype for dtype in TABLE}
BY_NAME = {dtype.name: dtype for dtype in TABLE}


def name_of(dtype: mx.Dtype) -> str:
    """The name of an MLX type, such as "float32"."""
    return str(dtype).removeprefix("mlx.core.").removesuffix("_")
