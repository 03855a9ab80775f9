"""Writing safetensors files, one tensor after another, so that only one is in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import mlx.core as mx

from mlxgen.weights.conversion.plan import Job, Part
from mlxgen.weights.files.headers import INDEX, SINGLE

MAX_SHARD_BYTES = 5 << 30  # as mlx-lm's

#: Called with (tensors done, tensors in all, name of the last).
Progress = Callable[[int, int, str], None]


def write_weights(folder: Path, jobs: Sequence[Job], progress: Progress | None = None) -> None:
    """model.safetensors in ``folder``, or shards and their index where it would be too large. Raises OSError."""
    parts = [part for job in jobs for part in job.parts]
    shards = split(parts, MAX_SHARD_BYTES)
    count = len(shards)
    names = [SINGLE] if count == 1 else [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    arrays = _arrays(jobs)
    done = 0
    for name, shard in zip(names, shards, strict=True):
        with (folder / name).open("wb") as file:
            file.write(header(shard))
            for part in shard:
                _write(file, part, next(arrays))
                done += 1
                if progress is not None:
                    progress(done, len(parts), part.name)
            file.flush()
            os.fsync(file.fileno())
    if len(shards) > 1:
        weight_map = {part.name: name for name, shard in zip(names, shards, strict=True) for part in shard}
        index = {
            "metadata": {"total_size": sum(p.nbytes for p in parts)},
            "weight_map": dict(sorted(weight_map.items())),
        }
        (folder / INDEX).write_text(json.dumps(index, indent=4) + "\n", encoding="utf-8")


def split(parts: Iterable[Part], limit: int) -> list[list[Part]]:
    """Parts in order, as many to a shard as fit; one that is too large alone has a shard to itself."""
    shards: list[list[Part]] = [[]]
    size = 0
    for part in parts:
        if shards[-1] and size + part.nbytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(part)
        size += part.nbytes
    return shards


def header(parts: Iterable[Part]) -> bytes:
    """A safetensors file up to its data: the length, and the JSON padded to eight bytes."""
    entries: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    begin = 0
    for part in parts:
        end = begin + part.nbytes
        entries[part.name] = {"dtype": part.dtype, "shape": list(part.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _arrays(jobs: Iterable[Job]) -> Iterator[mx.array]:
    for job in jobs:
        yield from job.make()
        mx.clear_cache()


def _write(file: BinaryIO, part: Part, array: mx.array) -> None:
    array = mx.contiguous(array)
    mx.eval(array)
    if array.shape != part.shape or array.nbytes != part.nbytes:
        raise AssertionError(f"{part.name} is {array.shape} {array.dtype}, its header says {part.shape} {part.dtype}")
    data: Any = array.view(mx.uint8)  # gives its memory away as a buffer, though its type does not say so
    file.write(memoryview(data))
