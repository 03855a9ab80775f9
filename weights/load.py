"""From a model's name to a Model: config, headers, weights, tokenizer, each checked in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn

from mlxgen import device
from mlxgen.errors import ModelError
from mlxgen.json_file import read_json
from mlxgen.network.config import GPT2Config, Quantization, read_config, token_ids
from mlxgen.weights.files.headers import read_headers
from mlxgen.weights.hub.resolve import resolve
from mlxgen.weights.layouts import HEAD, Layout, match

if TYPE_CHECKING:
    from mlxgen.model import Model
    from mlxgen.network.decoder import GPT2


def open_model(name: str, *, revision: str | None = None) -> Model:
    """Open the model called ``name``: "fairy-tales", a folder, a hub id or an alias.

    revision: a branch, tag or commit on the hub. Raises ModelError (one line: the cause and the way out), or
    OptionError for a revision of a folder.
    """
    from mlxgen.model import Model
    from mlxgen.text.tokenizer import load_tokenizer

    folder = resolve(name, revision)
    decoder = open_decoder(folder)
    tokenizer = load_tokenizer(folder, n_embeddings=decoder.config.vocab_size)
    device.lay_out_weights(decoder)
    ends = end_tokens(folder, decoder.config, tokenizer.eos_token_id)
    return Model(str(name), decoder.config, decoder, tokenizer, ends)


def open_decoder(folder: Path, *, packed: bool | None = None) -> GPT2:
    """The decoder with the weights of a folder, checked against the config before anything is allocated.

    packed: whether quantized layers stay packed. The default keeps them packed on Metal and unpacks them on the
    CPU backend, where products of packed weights are slow. Other weights are float32 on the CPU backend, else of
    the type that most of them are stored in. Raises ModelError.
    """
    from mlxgen.network.decoder import GPT2

    config = read_config(folder)
    try:
        layout = match(read_headers(folder), config)
    except ModelError as error:
        where = "" if str(error).startswith(str(folder)) else f"{folder}: "
        raise ModelError(f"{where}{error}") from None
    stored, packing = _read(layout), dict(layout.packed)
    if config.tie_word_embeddings and HEAD in stored:
        # As in transformers: what the config calls tied is tied only where the two are equal.
        if _head_is_embedding(stored):
            stored = {target: array for target, array in stored.items() if not target.startswith("lm_head.")}
            packing.pop("lm_head", None)
        else:
            config = replace(config, tie_word_embeddings=False)
    if packed is None:
        packed = not device.on_cpu()
    if not packed:
        for path, entry in packing.items():
            stored[f"{path}.weight"] = _unpack(stored, path, entry)
    decoder = GPT2(config)
    if packed and packing:
        _pack_modules(decoder, packing)
    dtype = device.compute_dtype(_main_type(stored.values()))
    decoder.load_weights([(target, _cast(array, dtype)) for target, array in stored.items()], strict=True)
    decoder.eval()
    try:
        mx.eval(decoder.parameters())
    except (RuntimeError, ValueError) as error:  # the file changed since its header was read
        raise ModelError(f"{folder}: the weights cannot be read ({_line(error)})") from None
    return decoder


def end_tokens(folder: Path, config: GPT2Config, tokenizer_end: int | None) -> frozenset[int]:
    """The tokens that end an answer: config.json's, generation_config.json's, and the tokenizer's own."""
    ends = {*config.eos_token_ids}
    path = folder / "generation_config.json"
    if path.is_file():
        try:
            ends.update(token_ids(read_json(path), "eos_token_id", config.vocab_size))
        except ModelError as error:
            where = "" if str(error).startswith(str(path)) else f"{path}: "
            raise ModelError(f"{where}{error}") from None
    if tokenizer_end is not None and 0 <= tokenizer_end < config.vocab_size:
        ends.add(tokenizer_end)
    return frozenset(ends)


def _read(layout: Layout) -> dict[str, mx.array]:
    """The decoder's weights as stored, [out, in]: lazy arrays, read from their files when evaluated."""
    by_file: dict[Path, list[str]] = {}
    for target, source in layout.sources.items():
        by_file.setdefault(source.tensor.file, []).append(target)
    stored: dict[str, mx.array] = {}
    for file, targets in by_file.items():
        arrays = load_file(file)
        for target in targets:
            source = layout.sources[target]
            array = arrays[source.name]
            stored[target] = array.T if source.transpose else array
    return stored


def load_file(file: Path) -> dict[str, mx.array]:
    """The tensors of a safetensors file: lazy arrays, read when they are evaluated. Raises ModelError."""
    try:
        arrays: Any = mx.load(str(file))
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{file}: cannot be read ({_line(error)})") from None
    return dict(arrays)


def _unpack(stored: dict[str, mx.array], path: str, entry: Quantization) -> mx.array:
    """Take a packed layer's parts out of ``stored`` and return its weight, [out, in]."""
    weight, scales = stored.pop(f"{path}.weight"), stored.pop(f"{path}.scales")
    biases = stored.pop(f"{path}.biases", None)
    return mx.dequantize(weight, scales, biases, group_size=entry.group_size, bits=entry.bits, mode=entry.mode)


def _head_is_embedding(stored: dict[str, mx.array]) -> bool:
    """Whether the output head, with all its parts where it is packed, equals the word embedding."""
    head = {target: array for target, array in stored.items() if target.startswith("lm_head.")}
    pairs = ((array, stored.get(target.replace("lm_head", "model.wte"))) for target, array in head.items())
    return all(other is not None and mx.array_equal(array, other).item() for array, other in pairs)


def _pack_modules(decoder: GPT2, packing: Mapping[str, Quantization]) -> None:
    """Put quantized modules in the place of exactly the layers whose weights are packed."""

    def choose(path: str, module: nn.Module) -> bool | dict[str, Any]:
        entry = packing.get(path)
        if entry is None:
            return False
        return {"group_size": entry.group_size, "bits": entry.bits, "mode": entry.mode}

    nn.quantize(decoder, class_predicate=choose)


def _main_type(arrays: Iterable[mx.array]) -> mx.Dtype:
    """The floating type that most numbers are stored in: one type for all keeps products from mixing two."""
    sizes: Counter[mx.Dtype] = Counter()
    for array in arrays:
        if mx.issubdtype(array.dtype, mx.floating):
            sizes[array.dtype] += array.size
    return max(sizes, key=lambda dtype: sizes[dtype])


def _cast(array: mx.array, dtype: mx.Dtype) -> mx.array:
    """A weight in the type to compute in; the packed ones, which are integers, as they are."""
    return array.astype(dtype) if mx.issubdtype(array.dtype, mx.floating) else array


def _line(error: BaseException) -> str:
    lines: Iterable[str] = str(error).splitlines()
    return next(iter(lines), type(error).__name__)[:200]
