"""PyTorch's own files, which are pickles. Only weights and plain values are read from them, and no code is run."""

from __future__ import annotations

import io
import pickle
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxgen.dtypes import BY_NAME, FLOAT32
from mlxgen.errors import ModelError, printable, reason_of
from mlxgen.installation import install_command
from mlxgen.lfs_pointer import check_not_pointer
from mlxgen.regular_file import read_regular
from mlxgen.weights.files.headers import StoredTensor
from mlxgen.weights.sources.archive_check import check_archive, check_pickles
from mlxgen.weights.sources.checkpoint import LazyTensor
from mlxgen.weights.sources.pickle_check import DAMAGED, PickleRefused, check_pickle
from mlxgen.weights.sources.record import Record

STATE_DICT_KEYS = ("model", "state_dict", "model_state_dict", "module")  # where trainers keep it, the last DeepSpeed
NOT_COMPLETE = "not a complete PyTorch file (it is cut off, or has another format); download it again"
ZIP = b"PK\x03\x04"
MAX_PLAIN_BYTES = 64 << 20


def read_pickle(file: Path) -> Any:
    """What a PyTorch file contains, with tensors on the CPU and mapped from the file where its format allows it.

    It is read with ``weights_only=True``, so a file with anything but tensors and plain values is refused unread. An
    object that consists of fields, such as a config, becomes a `Record`. Raises ModelError.
    """
    try:
        import torch
    except ImportError:
        raise ModelError(f"{file}: reading PyTorch weights needs torch: `{install_command('torch')}`") from None
    check_not_pointer(file)
    try:
        with file.open("rb") as stream:
            mapped = stream.read(len(ZIP)) == ZIP  # before PyTorch 1.6 a file was one pickle
        classes = check_archive(file) if mapped else check_pickles(file)
    except OSError as error:
        raise ModelError(f"{file}: cannot be read ({reason_of(error)})") from None
    except PickleRefused as error:
        raise ModelError(f"{file}: {NOT_COMPLETE if str(error) == DAMAGED else error}") from None
    except Exception:  # zipfile has many ways to fail on a damaged archive
        raise ModelError(f"{file}: {NOT_COMPLETE}") from None
    try:
        with (
            warnings.catch_warnings(action="ignore"),  # about pickle protocols that this torch would not write
            torch.serialization.safe_globals([*_numpy_scalars(), *((Record, name) for name in classes)]),
        ):
            return torch.load(str(file), map_location="cpu", weights_only=True, mmap=mapped)
    except MemoryError:
        raise ModelError(f"{file}: does not fit into memory") from None
    except Exception as error:  # a damaged file fails in many ways
        raise ModelError(f"{file}: {_refusal(error)}") from None


def _numpy_scalars() -> list[Any]:
    """What torch may build besides its own types: NumPy's numbers, such as the loss that nanoGPT saves."""
    import numpy as np

    types = {type(np.dtype(code)) for code in "?bBhHiIlLqQefd"}
    names = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar")
    return [np.dtype, *types, *((_number, name) for name in names)]


def _number(dtype: Any, data: Any = b"") -> Any:
    """The Python number that a NumPy scalar stands for, in place of NumPy's function. Refuses anything else."""
    import numpy as np

    if not isinstance(dtype, np.dtype) or dtype.kind not in "bfiu" or not isinstance(data, bytes):
        raise pickle.UnpicklingError("function numpy.core.multiarray.scalar")
    return np.frombuffer(data, dtype, count=1)[0].item()


def _refusal(error: Exception) -> str:
    """Why torch.load refused a file."""
    text = str(error)
    if "TorchScript" in text:
        return "is a TorchScript program, not a file of weights; save the model's state dict instead"
    named = re.search(
        r"GLOBAL ([\w.]+)|Unsupported (?:class|global) ([\w.]+)|function ([\w.]+)|got <class '([\w.]+)'", text
    )
    if isinstance(error, pickle.UnpicklingError) and named:
        what = next(group for group in named.groups() if group)
        return (
            f"refused, because loading it would run code ({what}); if you trust its origin, load it with PyTorch "
            "and save its state dict"
        )
    return NOT_COMPLETE


def state_dict(content: Any, file: Path) -> dict[str, LazyTensor]:
    """The named tensors in a file's content, at its top level or under one of the usual keys. Raises ModelError."""
    import torch

    nested = [content.get(key) for key in STATE_DICT_KEYS] if isinstance(content, Mapping) else []
    for candidate in (content, *nested):
        if not isinstance(candidate, Mapping) or not candidate:
            continue
        tensors = {name: value for name, value in candidate.items() if isinstance(value, torch.Tensor)}
        if tensors and len(tensors) == len(candidate) and all(isinstance(name, str) for name in tensors):
            return {name: _lazy(file, name, tensor) for name, tensor in tensors.items()}
    raise ModelError(
        f"{file}: contains no state dict (named tensors, at the top level or under 'model' or 'state_dict')"
    )


def _lazy(file: Path, name: str, tensor: Any) -> LazyTensor:
    import torch

    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        raise ModelError(f"{file}: {printable(name)} is a nested, sparse or quantized tensor")
    torch_name = str(tensor.dtype).removeprefix("torch.")
    # float64 is narrowed when it is read: MLX's GPUs do not have it.
    dtype = FLOAT32 if torch_name == "float64" else BY_NAME.get(torch_name)
    tag = torch_name if dtype is None else dtype.tag
    stored = StoredTensor(tag, tuple(tensor.shape), file, narrowed=torch_name == "float64")
    return LazyTensor(stored, _reader(file, name, tensor))


def _reader(file: Path, name: str, tensor: Any) -> Callable[[], mx.array]:
    def read() -> mx.array:
        import torch

        try:
            plain = tensor.detach()
            if plain.dtype == torch.float64:
                plain = plain.to(torch.float32)
            if plain.dtype == torch.bfloat16:  # NumPy has none: the same bits, called uint16
                return mx.array(plain.contiguous().view(torch.uint16).numpy()).view(mx.bfloat16)
            return mx.array(plain.contiguous().numpy())
        except (RuntimeError, TypeError, ValueError) as error:
            raise ModelError(f"{file}: {printable(name)} cannot be read ({reason_of(error)})") from None

    return read


class _Plain(pickle.Unpickler):
    """Reads numbers, text, lists and dicts. Any class or function is refused before it is looked up."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"{module_name}.{global_name}")


def read_plain_pickle(file: Path) -> Any:
    """The content of a pickle of plain data, such as nanoGPT's meta.pkl. Any other is refused with a ModelError."""
    check_not_pointer(file)
    content = io.BytesIO(read_regular(file, MAX_PLAIN_BYTES, "a vocabulary"))
    try:
        check_pickle(content)
        content.seek(0)
        return _Plain(content).load()
    except PickleRefused as error:
        raise ModelError(f"{file}: not a vocabulary ({error}); give one as a JSON file with --vocab") from None
    except Exception:
        raise ModelError(
            f"{file}: refused, because it is not plain data and loading it could run code; "
            "give the vocabulary as a JSON file with --vocab"
        ) from None
