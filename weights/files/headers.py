"""What a checkpoint's safetensors files say they hold, read without touching a single weight.

A safetensors file is 8 bytes (the header's length, little-endian), the header (JSON: the dtype, shape and place
of each tensor) and the data. The files are untrusted: every number is checked against the file's real size.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxgen.errors import ModelError
from mlxgen.json_file import read_json

#: Bytes of one element. Types of under a byte do not occur in checkpoints of GPT-2.
ITEMSIZE = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
TORCH_INDEX = "pytorch_model.bin.index.json"
TORCH_FILES = ("pytorch_model*.bin", "*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as its file describes it."""

    file: Path
    dtype: str  # safetensors' name: "F32", "F16", "BF16", "U32", …
    shape: tuple[int, ...]


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that make up the model in ``folder``.

    model.safetensors; or the shards that the index names; or, with no index, every model*.safetensors.
    Raises ModelError where there are none, or where the index names one that is not there.
    """
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        return shards(folder)
    found = sorted(path for path in folder.glob("model*.safetensors") if path.is_file())
    if found:
        return found
    for pattern in TORCH_FILES:
        if other := sorted(folder.glob(pattern)):
            raise ModelError(
                f"{folder}: has PyTorch weights only ({other[0].name}); `mlxgen convert {folder}` "
                'makes a folder from them that mlxgen opens (it needs pip install "mlxgen[torch]")'
            )
    raise ModelError(f"{folder}: has no weights ({SINGLE}, or shards with {INDEX})")


def read_headers(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the model in ``folder``, by name. Raises ModelError for a damaged file."""
    stored: dict[str, StoredTensor] = {}
    for file in weight_files(folder):
        for name, tensor in read_header(file).items():
            if name in stored:
                raise ModelError(f"{folder}: {shown(name)} is in both {stored[name].file.name} and {file.name}")
            stored[name] = tensor
    return stored


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, by name. Raises ModelError for a damaged file."""
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise ModelError(f"{file}: not a whole safetensors file (its header does not fit); download it again")
            text = stream.read(length)
        header = json.loads(text)
    except OSError as error:
        raise ModelError(f"{file}: cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError):
        raise ModelError(f"{file}: not a safetensors file (its header is not JSON)") from None
    if not isinstance(header, dict):
        raise ModelError(f"{file}: not a safetensors file (its header is not an object)")
    header.pop("__metadata__", None)
    return {name: _tensor(file, name, entry, size - 8 - length) for name, entry in header.items()}


def shown(name: str, width: int = 80) -> str:
    """A name from an untrusted file, fit for one line of a message."""
    return name[:width] if name.isprintable() else ascii(name)[1:-1][:width]


def _tensor(file: Path, name: str, entry: Any, data_bytes: int) -> StoredTensor:
    """One entry of the header, checked against the bytes of data that the file really has."""
    where = f"{file}: {shown(name)}"
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        sound = all(type(number) is int and number >= 0 for number in [*shape, begin, end]) and len(shape) <= 8
        itemsize = ITEMSIZE.get(dtype)
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"{where}: the header's entry is damaged; download the file again") from None
    if itemsize is None:
        raise ModelError(f"{where}: type {shown(str(dtype), 20)} is not one that mlxgen reads (F32, F16, BF16)")
    if not sound or end - begin != math.prod(shape) * itemsize:
        raise ModelError(f"{where}: the header's entry is damaged; download the file again")
    if end > data_bytes:
        raise ModelError(f"{where}: the file is cut off ({end - data_bytes} bytes too few); download it again")
    return StoredTensor(file, dtype, tuple(shape))


def shards(folder: Path, index: str = INDEX, suffix: str = ".safetensors") -> list[Path]:
    """The files that an index names, each once. Raises ModelError where one is not there."""
    path = folder / index
    weight_map = read_json(path, max_bytes=64 << 20).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{path}: names no files (no weight_map)")
    names: set[str] = set()
    for name in weight_map.values():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(suffix):
            raise ModelError(f"{path}: names {shown(str(name))}, which is not a {suffix} file beside it")
        names.add(name)
    missing = sorted(name for name in names if not (folder / name).is_file())
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"{path}: names {shown(missing[0])}{more}, which is not there; download the model again")
    return [folder / name for name in sorted(names)]
