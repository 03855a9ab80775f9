"""The format that weights are converted to: the options, checked."""

from __future__ import annotations

from dataclasses import dataclass

from mlxgen.dtypes import BY_NAME, WEIGHT_TYPES, DType
from mlxgen.errors import OptionError
from mlxgen.network.config import Quantization

BITS, GROUP_SIZES = (4, 8), (32, 64, 128)
GROUP_SIZE = 64


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """What the weights become. dtype: None keeps the stored type. Made by `weight_format`."""

    dtype: DType | None = None
    quantization: Quantization | None = None
    keep_head: bool = False
    dequantize: bool = False


def weight_format(
    dtype: str | None, quantize: int | None, group_size: int, keep_head: bool, dequantize: bool
) -> WeightFormat:
    """Check the options of a conversion, see `convert`. Raises OptionError."""
    names = [known.name for known in WEIGHT_TYPES]
    if dtype is not None and dtype not in names:
        raise OptionError(f"dtype must be one of {', '.join(names)}, not {dtype!r}")
    if quantize is not None and quantize not in BITS:
        raise OptionError(f"quantize must be 4 or 8 (bits), not {quantize!r}")
    if group_size not in GROUP_SIZES:
        raise OptionError(f"group_size must be 32, 64 or 128, not {group_size!r}")
    if quantize is not None and dequantize:
        raise OptionError("quantize and dequantize cannot be combined")
    if quantize is None and (keep_head or group_size != GROUP_SIZE):
        raise OptionError("group_size and keep_head apply only with --quantize 4 or 8")
    quantization = None if quantize is None else Quantization(group_size, quantize)
    return WeightFormat(None if dtype is None else BY_NAME[dtype], quantization, keep_head, dequantize)
