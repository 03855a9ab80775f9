"""Writing safetensors files one tensor after another, so that only a few are in memory at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import mlx.core as mx

from mlxgen.safetensors_header import TensorEntry
from mlxgen.weights.files.model_folder import INDEX, SINGLE

MAX_SHARD_BYTES = 5 << 30  # as mlx-lm's

#: Called with (tensors written, tensors in all, name of the last).
WriteProgress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Tensors that are computed together, such as a quantized layer's weight, scales and biases.

    Their names, types and shapes are known before they are computed, so the file's header can be written first.
    """

    tensors: Mapping[str, TensorEntry]
    compute: Callable[[], Sequence[mx.array]]


def write_weights(
    folder: Path,
    groups: Sequence[TensorGroup],
    progress: WriteProgress | None = None,
    metadata_format: str = "mlx",
) -> None:
    """Write model.safetensors into ``folder``, or shards and an index if it would be too large. Raises OSError.

    metadata_format: what the files say of their layout; transformers expects "pt" or "mlx".
    """
    shards = split_into_shards(groups, MAX_SHARD_BYTES)
    n_tensors = sum(len(shard) for shard in shards)
    count = len(shards)
    names = [SINGLE] if count == 1 else [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    arrays = _computed(groups)
    written = 0
    for file_name, shard in zip(names, shards, strict=True):
        with (folder / file_name).open("wb") as file:
            file.write(header(shard, metadata_format))
            for name, tensor in shard.items():
                _write(file, name, tensor, next(arrays))
                written += 1
                if progress is not None:
                    progress(written, n_tensors, name)
            file.flush()
            os.fsync(file.fileno())
    if count > 1:
        weight_map = {name: file_name for file_name, shard in zip(names, shards, strict=True) for name in shard}
        total = sum(tensor.nbytes for shard in shards for tensor in shard.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=4) + "\n", encoding="utf-8")


def split_into_shards(groups: Iterable[TensorGroup], limit: int) -> list[dict[str, TensorEntry]]:
    """The tensors in order, as many to a shard as fit; one that is larger than ``limit`` has a shard to itself."""
    shards: list[dict[str, TensorEntry]] = [{}]
    size = 0
    for group in groups:
        for name, tensor in group.tensors.items():
            if shards[-1] and size + tensor.nbytes > limit:
                shards.append({})
                size = 0
            shards[-1][name] = tensor
            size += tensor.nbytes
    return shards


def header(tensors: Mapping[str, TensorEntry], metadata_format: str = "mlx") -> bytes:
    """A safetensors file up to its data: the length, and the JSON padded to eight bytes."""
    entries: dict[str, object] = {"__metadata__": {"format": metadata_format}}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + tensor.nbytes
        entries[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _computed(groups: Iterable[TensorGroup]) -> Iterator[mx.array]:
    for group in groups:
        yield from group.compute()
        mx.clear_cache()


def _write(file: BinaryIO, name: str, tensor: TensorEntry, array: mx.array) -> None:
    array = mx.contiguous(array)
    mx.eval(array)
    if array.shape != tensor.shape or array.nbytes != tensor.nbytes:
        raise AssertionError(f"{name} is {array.shape} {array.dtype}, its header says {tensor.shape} {tensor.dtype}")
    data: Any = array.view(mx.uint8)  # supports the buffer protocol, though its type does not say so
    file.write(memoryview(data))
