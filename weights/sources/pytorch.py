"""PyTorch's own files, which are pickles: read as weights and plain values, never as code."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxgen.errors import ModelError
from mlxgen.weights.files.headers import StoredTensor
from mlxgen.weights.sources.record import LazyTensor

if TYPE_CHECKING:
    import mlx.core as mx

WRAPPERS = ("model", "state_dict", "model_state_dict")  # where training scripts keep the state dict
ZIP = b"PK\x03\x04"
DTYPES = {
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.float64": "F32",  # narrowed when it is read: MLX's GPUs have no float64
    "torch.bool": "BOOL",
    "torch.uint8": "U8",
    "torch.int64": "I64",
}
MAX_PLAIN_BYTES = 64 << 20


def read_pickle(file: Path) -> Any:
    """What a PyTorch file holds, tensors on the CPU and mapped from the file where its format allows it.

    Read with ``weights_only=True``: a file that names anything but tensors and plain values is refused unread.
    Raises ModelError.
    """
    try:
        import torch
    except ImportError:
        raise ModelError(
            f'{file}: PyTorch weights, and reading them needs torch: pip install "mlxgen[torch]"'
        ) from None
    try:
        with file.open("rb") as stream:
            mapped = stream.read(len(ZIP)) == ZIP  # before PyTorch 1.6 it was one pickle
    except OSError as error:
        raise ModelError(f"{file}: cannot be read ({error.strerror or error})") from None
    try:
        with warnings.catch_warnings(action="ignore"):  # of pickle protocols that this torch would not write
            return torch.load(str(file), map_location="cpu", weights_only=True, mmap=mapped)
    except MemoryError:
        raise ModelError(f"{file}: does not fit into memory") from None
    except Exception as error:  # a damaged file fails in many ways
        raise ModelError(f"{file}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    text = str(error)
    if "TorchScript" in text:
        return "a TorchScript program, not a file of weights; save the model's state dict"
    named = re.search(r"GLOBAL ([\w.]+)|Unsupported (?:class|global) ([\w.]+)|function ([\w.]+)", text)
    if isinstance(error, pickle.UnpicklingError) and named:
        what = next(group for group in named.groups() if group)
        return (
            f"refused: reading it would run code ({what}), and a file of weights needs none; "
            "if you trust where it came from, load it there and save its state dict"
        )
    return "not a whole PyTorch file (cut off, or something else); download it again"


def state_dict(content: Any, file: Path) -> dict[str, LazyTensor]:
    """The named tensors in what a file held: itself, or under one of the usual keys. Raises ModelError."""
    import torch

    wrapped = [content.get(key) for key in WRAPPERS] if isinstance(content, Mapping) else []
    for candidate in (content, *wrapped):
        if not isinstance(candidate, Mapping) or not candidate:
            continue
        tensors = {name: value for name, value in candidate.items() if isinstance(value, torch.Tensor)}
        if tensors and len(tensors) == len(candidate) and all(isinstance(name, str) for name in tensors):
            return {name: _held(file, name, tensor) for name, tensor in tensors.items()}
    raise ModelError(f"{file}: holds no state dict (named tensors, or such under 'model' or 'state_dict')")


def _held(file: Path, name: str, tensor: Any) -> LazyTensor:
    dtype = DTYPES.get(str(tensor.dtype), str(tensor.dtype).removeprefix("torch."))
    return LazyTensor(StoredTensor(file, dtype, tuple(tensor.shape)), _reader(file, name, tensor))


def _reader(file: Path, name: str, tensor: Any) -> Callable[[], mx.array]:
    def read() -> mx.array:
        import mlx.core as mx
        import torch

        try:
            plain = tensor.detach()
            if plain.dtype == torch.float64:
                plain = plain.to(torch.float32)
            if plain.dtype == torch.bfloat16:  # NumPy has none: the same bits, called uint16
                return mx.array(plain.contiguous().view(torch.uint16).numpy()).view(mx.bfloat16)
            return mx.array(plain.contiguous().numpy())
        except (RuntimeError, TypeError, ValueError) as error:
            reason = str(error).partition("\n")[0][:200]
            raise ModelError(f"{file}: {name} cannot be read ({reason})") from None

    return read


class _Plain(pickle.Unpickler):
    """Numbers, text, lists and dicts. Whatever names a class or a function is refused before it is looked up."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"{module_name}.{global_name}")


def read_plain_pickle(file: Path) -> Any:
    """A pickle that holds plain data alone (nanoGPT's meta.pkl). Raises ModelError for any other, unread."""
    try:
        if file.stat().st_size > MAX_PLAIN_BYTES:
            raise ModelError(f"{file}: more than {MAX_PLAIN_BYTES >> 20} MB; that is not a vocabulary")
        with file.open("rb") as stream:
            return _Plain(stream).load()
    except OSError as error:
        raise ModelError(f"{file}: cannot be read ({error.strerror or error})") from None
    except ModelError:
        raise
    except Exception:
        raise ModelError(
            f"{file}: refused: it is not plain data, and reading it could run code; "
            "give the vocabulary as JSON with --vocab meta.json"
        ) from None
