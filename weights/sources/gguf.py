"""GGUF files of llama.cpp with the architecture gpt2: config, tensors and tokenizer from one file.

Quantized layers that MLX can hold stay packed, so the logits are those of the file's own numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlxgen.errors import ModelError, OptionError, printable, reason_of
from mlxgen.json_file import describe
from mlxgen.weights.files.headers import StoredTensor
from mlxgen.weights.sources import gguf_types
from mlxgen.weights.sources.checkpoint import Checkpoint, LazyTensor
from mlxgen.weights.sources.gguf_header import GGUFError, GGUFHeader, TableEntry, read_gguf_header
from mlxgen.weights.sources.gguf_names import HEAD, decoder_names
from mlxgen.weights.sources.gguf_tokenizer import end_tokens, tokenizer_files
from mlxgen.weights.sources.gguf_types import GROUP, NAMES, TYPES, BlockType
from mlxgen.weights.sources.raw_numbers import STORED_AS, as_array

SIZES = {
    "n_positions": "gpt2.context_length",
    "n_embd": "gpt2.embedding_length",
    "n_layer": "gpt2.block_count",
    "n_head": "gpt2.attention.head_count",
    "n_inner": "gpt2.feed_forward_length",
}
EPSILON = "gpt2.attention.layer_norm_epsilon"


def open_gguf(file: Path, config: Path | None = None) -> Checkpoint:
    """The checkpoint in a GGUF file, whose header is read and checked; the tensors are lazy.

    Raises ModelError, and OptionError for a config beside the file's own.
    """
    if config is not None:
        raise OptionError(f"{file}: a GGUF file has its config inside; leave --config out")
    try:
        header = read_gguf_header(file)
        _check_kind(header.metadata)
        entries = _entries(header.metadata)
        types = _checked_types(header)
    except GGUFError as error:
        raise ModelError(f"{file}: {error}") from None
    except OSError as error:
        raise ModelError(f"{file}: cannot be read ({reason_of(error)})") from None
    embedding = header.tensors.get("token_embd.weight")
    if embedding is not None and embedding.shape:
        entries["vocab_size"] = embedding.shape[0]
    names = dict(HEAD)
    for name, target in decoder_names(entries["n_layer"]):
        if name not in types:
            raise ModelError(f"{file}: {name} is missing; use a complete file")
        names[name] = target
    tensors: dict[str, LazyTensor] = {}
    packing: dict[str, int] = {}  # bits of each packed layer
    for name, entry in header.tensors.items():
        target = names.get(name, name)
        if types[name].bits is not None and target.endswith(".weight"):
            packing[target.removesuffix(".weight")] = types[name].bits or 0
            tensors |= _packed(file, target, entry, types[name])
        else:
            tensors[target] = _plain(file, target, entry, types[name])
    if packing:
        entries["quantization"] = _quantization(packing)
    kind = f"GGUF file, {_main_type(header.tensors, types)}"
    licence = header.metadata.get("general.license")
    return Checkpoint(
        kind,
        entries,
        tensors,
        folder=file,  # it has everything inside, and what is beside it may be about something else
        path=file,
        settings="its metadata",
        card={"license": licence} if isinstance(licence, str) else {},
        tokenizer=lambda: _tokenizer(file, header.metadata),
    )


def _check_kind(metadata: Mapping[str, Any]) -> None:
    architecture = metadata.get("general.architecture")
    if architecture != "gpt2":
        raise GGUFError(f"is a GGUF file of architecture {describe(architecture)}; mlxgen opens only gpt2")
    if metadata.get("general.type", "model") != "model":
        what = describe(metadata["general.type"])
        raise GGUFError(f"is a GGUF file of type {what}, not a complete model")
    if type(parts := metadata.get("split.count", 1)) is int and parts > 1:
        raise GGUFError(f"is one of {parts} parts of a model; join them with `llama-gguf-split --merge FIRST OUTPUT`")


def _entries(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a config.json. llama.cpp's gpt2 has one activation, GELU by tanh."""
    entries: dict[str, Any] = {"model_type": "gpt2", "activation_function": "gelu_new", "tie_word_embeddings": True}
    for name, key in SIZES.items():
        if key not in metadata:
            raise GGUFError(f"has no {key}")
        value = metadata[key]
        if type(value) is not int or not 1 <= value < 1 << 32:
            raise GGUFError(f"{key} is {describe(value)}; it must be a whole number from 1")
        entries[name] = value
    heads = metadata.get("gpt2.attention.head_count_kv", entries["n_head"])
    if heads != entries["n_head"]:
        raise GGUFError(f"gpt2.attention.head_count_kv is {describe(heads)}; GPT-2 has one key for each query head")
    epsilon = metadata.get(EPSILON)
    if type(epsilon) is not float or not 0 < epsilon < 1:
        raise GGUFError(f"{EPSILON} is {describe(epsilon)}; it must be a number between 0 and 1")
    entries["layer_norm_epsilon"] = float(str(np.float32(epsilon)))  # 1e-05, which is stored as a float32
    return entries | end_tokens(metadata)


def _checked_types(header: GGUFHeader) -> dict[str, BlockType]:
    """The type of each tensor, once its bytes are known to be in the file. Raises GGUFError."""
    types: dict[str, BlockType] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.tensors.items():
        kind = TYPES.get(entry.type)
        if kind is None:
            known = NAMES.get(entry.type)
            if known is None:
                raise GGUFError(f"is damaged ({printable(name)} has the unknown type {entry.type:,})")
            raise GGUFError(
                f"is quantized as {known}, which is not read ({printable(name)}); convert the model that it was made "
                "from, or one in F32, F16, BF16, Q8_0, Q4_0 or Q4_1, as `llama-quantize MODEL.gguf OUTPUT.gguf Q8_0` "
                "writes"
            )
        if not entry.shape or entry.shape[-1] % kind.n_numbers:
            raise GGUFError(f"is damaged ({printable(name)} has rows that are not whole blocks of {kind.name})")
        spans.append((entry.begin, entry.begin + _n_bytes(entry, kind), printable(name)))
        types[name] = kind
    filled = 0
    for begin, end, name in sorted(spans):
        if end > header.file_bytes:
            raise GGUFError(f"is cut off, or damaged: {name} would end {end - header.file_bytes:,} bytes after its end")
        if begin < filled:
            raise GGUFError(f"is damaged ({name} begins before the end of the tensor before it)")
        filled = end
    return types


def _n_bytes(entry: TableEntry, kind: BlockType) -> int:
    return math.prod(entry.shape) // kind.n_numbers * kind.n_bytes


def _plain(file: Path, target: str, entry: TableEntry, kind: BlockType) -> LazyTensor:
    """A tensor that is read as floating-point numbers."""
    tag = kind.name if kind.name in STORED_AS else "F32"

    def read() -> mx.array:
        data = _mapped(file, target, entry, kind)
        if kind.name in STORED_AS:
            return as_array(data, tag, entry.shape)
        if kind.bits is not None:  # a vector of a file that llama.cpp would not write
            raise ModelError(f"{file}: {printable(target)} is quantized, and only the weights of layers may be")
        blocks = data.reshape(entry.shape[0], -1, kind.n_bytes)  # of Q6_K
        return mx.array(gguf_types.unpacked_q6_k(blocks).reshape(entry.shape))

    return LazyTensor(StoredTensor(tag, entry.shape, file), read)


def _packed(file: Path, target: str, entry: TableEntry, kind: BlockType) -> dict[str, LazyTensor]:
    """A quantized weight as MLX's three tensors."""
    path = target.removesuffix(".weight")
    rows, columns = math.prod(entry.shape[:-1]), entry.shape[-1]
    groups = (rows, columns // GROUP)
    words = (rows, columns * (kind.bits or 0) // 32)

    def reader(part: Callable[[gguf_types.Array], gguf_types.Array]) -> Callable[[], mx.array]:
        return lambda: mx.array(part(_mapped(file, target, entry, kind).reshape(*groups, kind.n_bytes)))

    return {
        target: LazyTensor(
            StoredTensor("U32", words, file), reader(lambda blocks: gguf_types.packed_weight(blocks, kind.name))
        ),
        f"{path}.scales": LazyTensor(StoredTensor("F16", groups, file), reader(gguf_types.scales)),
        f"{path}.biases": LazyTensor(
            StoredTensor("F16", groups, file), reader(lambda blocks: gguf_types.biases(blocks, kind.name))
        ),
    }


def _mapped(file: Path, target: str, entry: TableEntry, kind: BlockType) -> gguf_types.Array:
    """A tensor's bytes, mapped from the file: the system can drop their pages."""
    n_bytes = _n_bytes(entry, kind)
    if not n_bytes:
        return np.empty(0, np.uint8)
    try:
        return np.memmap(file, np.uint8, "r", entry.begin, (n_bytes,))
    except (OSError, ValueError) as error:  # the file has changed since its header was read
        raise ModelError(f"{file}: {printable(target)} cannot be read ({reason_of(error)})") from None


def _quantization(packing: Mapping[str, int]) -> dict[str, Any]:
    """The entry of a config.json: the bits that most layers have, and the layers that have others."""
    bits = _most(packing.values())
    others = {path: {"group_size": GROUP, "bits": own} for path, own in packing.items() if own != bits}
    return {"group_size": GROUP, "bits": bits, "mode": "affine", **others}


def _most(numbers: Iterable[int]) -> int:
    listed = list(numbers)
    return max(set(listed), key=listed.count)


def _main_type(tensors: Mapping[str, TableEntry], types: Mapping[str, BlockType]) -> str:
    """The type that most numbers of the file have."""
    counts: dict[str, int] = {}
    for name, entry in tensors.items():
        counts[types[name].name] = counts.get(types[name].name, 0) + math.prod(entry.shape)
    return max(counts, key=lambda kind: counts[kind])


def _tokenizer(file: Path, metadata: Mapping[str, Any]) -> dict[str, bytes]:
    try:
        return tokenizer_files(metadata)
    except GGUFError as error:
        raise ModelError(f"{file}: {error}; give another tokenizer with --vocab") from None
