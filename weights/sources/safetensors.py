"""The tensors of safetensors files, each read by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import mlx.core as mx

from mlxgen.weights.files.arrays import tensor_reader
from mlxgen.weights.files.headers import read_headers
from mlxgen.weights.sources.checkpoint import LazyTensor


def read_safetensors(files: Iterable[Path]) -> dict[str, LazyTensor]:
    """Every tensor of some safetensors files, by name. Raises ModelError for a damaged file."""
    stored = read_headers(files)
    return {name: LazyTensor(tensor, _reader(tensor.file, name)) for name, tensor in stored.items()}


def _reader(file: Path, name: str) -> Callable[[], mx.array]:
    def read() -> mx.array:
        return tensor_reader(file)(name)  # lazy: only this tensor is read, and nothing keeps it afterwards

    return read
