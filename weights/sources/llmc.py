"""llm.c's model files: 256 numbers that describe the model, and then its weights, each kind for all layers at once.

The weights are [out, in], and GELU is the one by tanh. The embedding has rows of padding, which mean nothing.
The layout is that of `write_model` in llm.c's train_gpt2.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlxgen.dtypes import BY_TAG
from mlxgen.errors import ModelError, reason_of
from mlxgen.json_file import read_json
from mlxgen.network.config import GPT2Config
from mlxgen.regular_file import open_regular
from mlxgen.weights.files.headers import StoredTensor
from mlxgen.weights.sources.checkpoint import Checkpoint, LazyTensor
from mlxgen.weights.sources.raw_numbers import as_array, mapped_bytes

HEADER_BYTES = 256 * 4
TYPES = {3: "F32", 5: "BF16"}  # by the file's version
NAMES = ("n_positions", "vocab_size", "n_layer", "n_head", "n_embd", "padded_vocab_size")  # after magic and version
ENTRIES: dict[str, Any] = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}

Shape = tuple[int, ...]


def open_llmc(file: Path, config: Path | None) -> Checkpoint:
    """The checkpoint in a model file of llm.c. config: a config.json with further entries. Raises ModelError."""
    try:
        with open_regular(file) as stream:
            header = stream.read(HEADER_BYTES)
            held = stream.seek(0, 2)
    except OSError as error:
        raise ModelError(f"{file}: cannot be read ({reason_of(error)})") from None
    if len(header) < HEADER_BYTES:
        raise ModelError(f"{file}: cut off in its header; copy it again")
    _, version, *numbers = np.frombuffer(header, "<i4", 2 + len(NAMES)).tolist()
    sizes = dict(zip(NAMES, numbers, strict=True))
    tag = TYPES.get(version)
    if tag is None:
        raise ModelError(
            f"{file}: has version {version} of llm.c's format; mlxgen reads 3 (float32) and 5 (bfloat16), which llm.c "
            "has written since May 2024"
        )
    wrong = next((f"{name} {size}" for name, size in sizes.items() if size < 1), None)
    if sizes["padded_vocab_size"] < sizes["vocab_size"]:
        wrong = f"{sizes['vocab_size']} tokens in {sizes['padded_vocab_size']} rows"
    if wrong is not None:
        raise ModelError(f"{file}: its header is damaged ({wrong}); copy it again")
    needed = HEADER_BYTES + BY_TAG[tag].itemsize * sum(math.prod(shape) for _, shape in _parts(sizes))
    if held != needed:
        raise ModelError(f"{file}: has {held:,} bytes, and its header asks for {needed:,}; copy it again")
    own = {name: size for name, size in sizes.items() if name != "padded_vocab_size"}
    entries = ENTRIES | (read_json(config) if config else {}) | own
    try:
        GPT2Config.from_dict(entries)  # limits the number of layers
    except ModelError as error:
        raise ModelError(f"{file}: {error}") from None
    tensors = dict(_tensors(file, tag, sizes))
    return Checkpoint("llm.c checkpoint", entries, tensors, file.parent, file, "its header")


def _parts(sizes: dict[str, int]) -> Iterator[tuple[str, Shape]]:
    """What the file has one after another: names, with * for the number of the layer, which is then the first axis."""
    L, C = sizes["n_layer"], sizes["n_embd"]
    yield "wte.weight", (sizes["padded_vocab_size"], C)
    yield "wpe.weight", (sizes["n_positions"], C)
    for module, shape in (
        ("ln_1", (C,)),
        ("attn.c_attn", (3 * C, C)),
        ("attn.c_proj", (C, C)),
        ("ln_2", (C,)),
        ("mlp.c_fc", (4 * C, C)),
        ("mlp.c_proj", (C, 4 * C)),
    ):
        yield f"h.*.{module}.weight", (L, *shape)
        yield f"h.*.{module}.bias", (L, shape[0])
    yield "ln_f.weight", (C,)
    yield "ln_f.bias", (C,)


def _tensors(file: Path, tag: str, sizes: dict[str, int]) -> Iterator[tuple[str, LazyTensor]]:
    """The decoder's parameters."""
    offset = HEADER_BYTES
    for name, shape in _parts(sizes):
        of_layers = "*" in name
        n_tensors, each = (shape[0], shape[1:]) if of_layers else (1, shape)
        size = BY_TAG[tag].itemsize * math.prod(each)
        if name == "wte.weight":  # the rows of padding come last
            each = (sizes["vocab_size"], *each[1:])
        for number in range(n_tensors):
            target = f"model.{name.replace('*', str(number))}"
            yield target, LazyTensor(StoredTensor(tag, each, file), _reader(file, offset, tag, each))
            offset += size


def _reader(file: Path, offset: int, tag: str, shape: Shape) -> Callable[[], mx.array]:
    size = BY_TAG[tag].itemsize * math.prod(shape)

    def read() -> mx.array:
        return as_array(mapped_bytes(file, offset, size), tag, shape)

    return read
