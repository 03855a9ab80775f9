"""Flax weights (flax_model.msgpack), which transformers 4 wrote: nested maps, with an array at each end.

An array is an extension of type 1 that contains [shape, name of the type, bytes]. The weights of layers, "kernel", are
[out, in] in FlaxGPT2's blocks, and [in, out] in its output head. config.json is beside the file.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxgen.dtypes import BY_NAME
from mlxgen.errors import ModelError, printable, reason_of
from mlxgen.json_file import read_json
from mlxgen.regular_file import open_regular
from mlxgen.weights.files.headers import StoredTensor
from mlxgen.weights.sources.checkpoint import Checkpoint, LazyTensor
from mlxgen.weights.sources.msgpack import Place, Reader, Undecodable
from mlxgen.weights.sources.raw_numbers import STORED_AS, as_array, mapped_bytes
from mlxgen.weights.sources.state_dict import without_wrappers

ARRAY = 1  # the number of the extension
IN_CHUNKS = "__msgpack_chunked_array__"  # how Flax keeps an array of more than 1 GiB
MOST_PARTS = 12  # of an array: the list, the shape and its sizes, the type, the bytes
ENDS = {"kernel": "weight", "embedding": "weight", "scale": "weight", "bias": "bias"}
HEAD = "lm_head.weight"


def open_flax(file: Path, config: Path | None) -> Checkpoint:
    """The checkpoint in a file of Flax weights. config: a config.json if none is beside it. Raises ModelError."""
    settings = config or file.parent / "config.json"
    if not settings.is_file():
        raise ModelError(f"{file}: the config.json of these Flax weights is not beside them; give it with --config")
    try:
        with open_regular(file) as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            tree = Reader(data).value()
            tensors = dict(_arrays(tree if isinstance(tree, dict) else {}, data, file, ""))
    except (Undecodable, ValueError):  # ValueError: an empty file
        raise ModelError(f"{file}: not a complete file of Flax weights; download it again") from None
    except OSError as error:
        raise ModelError(f"{file}: cannot be read ({reason_of(error)})") from None
    if not tensors:
        raise ModelError(f"{file}: contains no arrays, so it is not a file of Flax weights")
    try:
        plain = without_wrappers(tensors)
    except ModelError as error:
        raise ModelError(f"{file}: {error}") from None
    named = {_decoders(name): tensor for name, tensor in plain.items()}
    if HEAD in named and len(named[HEAD].stored.shape) == 2:
        named[HEAD] = _turned(named[HEAD])
    return Checkpoint("Flax checkpoint", read_json(settings), named, file.parent, file, settings.name)


def _arrays(tree: Mapping[str, Any], data: mmap.mmap, file: Path, prefix: str) -> Iterator[tuple[str, LazyTensor]]:
    if IN_CHUNKS in tree:
        raise ModelError(
            f"{file}: {printable(prefix)} is larger than 1 GiB and stored in chunks, which mlxgen does not read"
        )
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _arrays(value, data, file, f"{prefix}{key}.")
        elif isinstance(value, Place) and value.kind == ARRAY:
            name = f"{prefix}{ENDS.get(key, key)}"
            yield name, _array(name, value, data, file)


def _array(name: str, place: Place, data: mmap.mmap, file: Path) -> LazyTensor:
    parts = Reader(data, place.offset, MOST_PARTS).value()
    if not isinstance(parts, list) or len(parts) != 3:
        raise Undecodable
    shape, dtype, content = parts
    whole = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if not whole or not isinstance(dtype, str) or not isinstance(content, Place):
        raise Undecodable
    known = BY_NAME.get(dtype)
    tag = known.tag if known is not None else dtype
    if tag not in STORED_AS:
        raise ModelError(f"{file}: {printable(name)} has type {printable(dtype, 20)}, not float32, float16 or bfloat16")
    inside = content.offset + content.size == place.offset + place.size
    if known is None or not inside or content.size != math.prod(shape) * known.itemsize:
        raise Undecodable
    sizes = tuple(shape)

    def read() -> mx.array:
        return as_array(mapped_bytes(file, content.offset, content.size), tag, sizes)

    return LazyTensor(StoredTensor(tag, sizes, file), read)


def _decoders(name: str) -> str:
    """The name in the layout whose weights are [out, in]."""
    return name if name.startswith("lm_head.") else f"model.{name.removeprefix('transformer.')}"


def _turned(tensor: LazyTensor) -> LazyTensor:
    stored = replace(tensor.stored, shape=tensor.stored.shape[::-1])
    return LazyTensor(stored, lambda: tensor.read().T)
