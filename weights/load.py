"""From a model's name to a Model: its config, weights and tokenizer, each checked in turn."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn

from mlxgen import device
from mlxgen.errors import ModelError, ModelWarning, reason_of
from mlxgen.forked_process import check_process
from mlxgen.json_file import read_json
from mlxgen.model import Model
from mlxgen.network.config import GPT2Config, Quantization, read_config, token_ids
from mlxgen.network.decoder import GPT2
from mlxgen.reading import reading
from mlxgen.text.tokenizer import load_tokenizer
from mlxgen.weights.files.arrays import tensor_reader
from mlxgen.weights.files.model_folder import has_tokenizer, unused_adapter
from mlxgen.weights.hub.locate import naming_hidden_model, resolve, source_of
from mlxgen.weights.layouts import ParameterSource, decoder_shapes, read_layout
from mlxgen.weights.parameters import DecoderWeights, Read, decoder_weights

if TYPE_CHECKING:
    from mlxgen.weights.adapters.adapter import Adapter


def open_model(
    name: str, *, revision: str | None = None, dtype: str | None = None, adapter: str | Path | None = None
) -> Model:
    """Open the model called ``name``: "fairy-tales", a folder, a hub id or an alias.

    revision: a branch, tag or commit on the hub. dtype: see mlxgen.load. adapter: the folder or hub id of an adapter to
    merge into the weights. Raises ModelError with the cause and the way out, or OptionError for a revision of a local
    folder or an unknown dtype.
    """
    check_process()
    device.compute_dtype(mx.float32, dtype)  # an unknown dtype is refused before anything is downloaded
    opened = None
    if adapter is not None:
        from mlxgen.weights.adapters.adapter import open_adapter  # a model without one needs none of it

        opened = open_adapter(adapter)
    folder = resolve(name, revision)
    if opened is None and (note := unused_adapter(folder)):
        warnings.warn(note, ModelWarning, stacklevel=2)
    with naming_hidden_model(str(name)), reading(folder):
        weights = folder_weights(folder)
    if opened is not None:
        weights = with_adapter(weights, opened)
    with naming_hidden_model(str(name)), reading(folder):
        decoder = _computed(weights, folder, dtype=dtype)
    place = tokenizer_folder(folder, opened)
    with naming_hidden_model(str(name)), reading(place):
        tokenizer = load_tokenizer(place, n_embeddings=decoder.config.vocab_size)
    with naming_hidden_model(str(name)), reading(folder):
        ends = end_tokens(folder, decoder.config, tokenizer.eos_token_id)
    device.lay_out_weights(decoder)
    return Model(
        str(name),
        decoder.config,
        decoder,
        tokenizer,
        ends,
        source_of(name, revision, folder),
        adapter=opened.name if opened else "",
        adapter_digest=opened.digest() if opened else "",
    )


def open_decoder(folder: Path, *, packed: bool | None = None, dtype: str | None = None) -> GPT2:
    """The decoder with the weights of a folder, which are checked against the config before anything is allocated.

    packed: whether quantized layers stay packed. By default they stay packed on Metal, and are unpacked on the CPU
    backend, where products of packed weights are slow. dtype: the type of other weights; None is float32 on the CPU
    backend, else the type that most of them are stored in. The head is always float32. Raises ModelError.
    """
    return _computed(folder_weights(folder), folder, packed=packed, dtype=dtype)


def folder_weights(folder: Path) -> DecoderWeights:
    """The weights of a folder, which are checked against its config and still lazy. Raises ModelError."""
    config = read_config(folder)
    layout = read_layout(folder, config)
    for note in layout.notes:
        warnings.warn(f"{folder}: {note}", ModelWarning, stacklevel=2)
    return decoder_weights(config, layout, _reader())


def with_adapter(weights: DecoderWeights, adapter: Adapter) -> DecoderWeights:
    """The weights with an adapter merged into them, still lazy. Raises ModelError where it does not fit."""
    from mlxgen.weights.adapters.merge import merge

    notes: list[str] = []
    with reading(adapter.folder):
        weights = merge(weights, adapter, notes.append)
    for note in notes:
        warnings.warn(f"{adapter.folder}: {note}", ModelWarning, stacklevel=2)
    return replace(weights, read=_reading_again(weights))


def tokenizer_folder(folder: Path, adapter: Adapter | None) -> Path:
    """Where a model's tokenizer is: with the adapter, if that has one, or else with the model."""
    return folder if adapter is None or not has_tokenizer(adapter.folder) else adapter.folder


def _computed(weights: DecoderWeights, folder: Path, *, packed: bool | None = None, dtype: str | None = None) -> GPT2:
    """See `open_decoder`."""
    decoder = build_decoder(weights, packed=not device.on_cpu() if packed is None else packed, dtype=dtype)
    try:
        mx.eval(decoder.parameters())
    except (RuntimeError, ValueError) as error:  # the file has changed since its header was read
        raise ModelError(f"{folder}: the weights cannot be read ({reason_of(error)})") from None
    return decoder


def build_decoder(weights: DecoderWeights, *, packed: bool, dtype: str | None = None) -> GPT2:
    """A decoder with these weights, still lazy. packed: whether packed layers stay so. dtype: see `open_decoder`."""
    decoder = GPT2(weights.config)
    if packed:
        _pack_modules(decoder, weights.packed)
    computed = device.compute_dtype(weights.layout.dtype.mlx, dtype)
    head = "model.wte." if weights.config.tie_word_embeddings else "lm_head."  # it computes in float32
    cast: list[tuple[str, mx.array]] = []
    for target in decoder_shapes(weights.config):
        tensors = _tensors(weights, target, packed)
        to = mx.float32 if target.startswith(head) else computed
        cast += [(name, _cast(tensors.pop(name), to)) for name in [*tensors]]
        if target in weights.changes:  # computed at once, so that only one is there in float32 beside the result
            mx.eval(cast[-1][1])
            mx.clear_cache()
    decoder.load_weights(cast, strict=True)
    decoder.eval()
    return decoder


def end_tokens(folder: Path, config: GPT2Config, tokenizer_end: int | None) -> frozenset[int]:
    """The tokens that end an answer: config.json's, generation_config.json's, and the tokenizer's own."""
    ends = {*config.eos_token_ids}
    path = folder / "generation_config.json"
    if path.is_file():
        entries = read_json(path)
        try:
            ends.update(token_ids(entries, "eos_token_id", config.vocab_size))
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from None
    if tokenizer_end is not None and 0 <= tokenizer_end < config.vocab_size:
        ends.add(tokenizer_end)
    return frozenset(ends)


def _reader() -> Read:
    """Reads tensors from their files, opening each file once."""
    opened: dict[Path, Callable[[str], mx.array]] = {}

    def read(source: ParameterSource) -> mx.array:
        file = source.tensor.file
        if file not in opened:
            opened[file] = tensor_reader(file)
        return opened[file](source.name)

    return read


def _tensors(weights: DecoderWeights, target: str, packed: bool) -> dict[str, mx.array]:
    """The lazy tensors of one parameter, by their names: one, or those of a packed layer."""
    path = target.removesuffix(".weight")
    if packed and path != target and path in weights.packed:
        return weights.stored_parts(path)
    return {target: weights.unpacked(target, mx.float32)}


def _reading_again(weights: DecoderWeights) -> Read:
    """Reads what an adapter changes anew each time, so that nothing keeps the stored numbers beside the merged ones."""
    paths = [change.base.removesuffix(".weight") for change in weights.changes.values()]
    targets = [f"{path}{kind}" for path in paths for kind in ("", ".weight", ".scales", ".biases")]
    changed = {weights.layout.sources[target] for target in targets if target in weights.layout.sources}

    def read(source: ParameterSource) -> mx.array:
        return tensor_reader(source.tensor.file)(source.name) if source in changed else weights.read(source)

    return read


def _pack_modules(decoder: GPT2, packing: Mapping[str, Quantization]) -> None:
    """Replace exactly the layers whose weights are packed by quantized modules."""
    if not packing:
        return

    def choose(path: str, module: nn.Module) -> bool | dict[str, Any]:
        entry = packing.get(path)
        if entry is None:
            return False
        return {"group_size": entry.group_size, "bits": entry.bits, "mode": entry.mode}

    nn.quantize(decoder, class_predicate=choose)


def _cast(array: mx.array, dtype: mx.Dtype) -> mx.array:
    """A weight in the type to compute in. Packed weights, which are integers, stay as they are."""
    return array.astype(dtype) if mx.issubdtype(array.dtype, mx.floating) else array
