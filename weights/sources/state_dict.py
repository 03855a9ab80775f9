"""A state dict without a model folder: which program saved it, and the config that follows from its shapes.

GPT-2's own lineage stores the weights of its layers as "Conv1D", [in, out]; nanoGPT and minGPT store nn.Linear's,
[out, in]. The shape of c_attn, which has three times as many outputs as inputs, tells them apart. minGPT always has
mask buffers, and nanoGPT has them where it finds no flash attention, but only minGPT's head differs from the embedding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxgen.errors import ModelError
from mlxgen.json_file import read_json
from mlxgen.weights import tensor_names
from mlxgen.weights.layouts import listed
from mlxgen.weights.parameters import same_numbers
from mlxgen.weights.sources import mingpt, nanogpt
from mlxgen.weights.sources.checkpoint import Checkpoint, LazyTensor
from mlxgen.weights.sources.record import fields_of

LINEAR_PREFIX = "model."  # the layout whose weights are [out, in]
MASK = re.compile(r"(.*\.)?h\.0\.attn\.bias")
#: Entries of a config.json that are taken from a config of transformers'.
OF_TRANSFORMERS = (
    *("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner", "activation_function"),
    *("layer_norm_epsilon", "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"),
    *("add_cross_attention", "tie_word_embeddings", "bos_token_id", "eos_token_id"),
)
#: Those that nanoGPT's and minGPT's configs have under the same name.
SHARED_ENTRIES = ("vocab_size", "n_layer", "n_head", "n_embd")


def in_known_layout(tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """The tensors under names of a layout that `layouts.match` knows."""
    plain = {
        name.replace("lm_head.decoder.", "lm_head."): tensor  # DialoGPT's first files
        for name, tensor in without_wrappers(tensors).items()
    }
    return {_linear_name(name): tensor for name, tensor in plain.items()} if is_linear(plain) else plain


def without_wrappers(tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """The tensors under their names without the prefixes of other programs. Raises ModelError, see `tensor_names`."""
    names = tensor_names.names_without_prefixes({name: tensor.stored for name, tensor in tensors.items()})
    return {names[name]: tensor for name, tensor in tensors.items()}


def is_linear(tensors: Mapping[str, LazyTensor]) -> bool:
    """Whether the weights of the layers are stored as [out, in]."""
    shape = next(
        (tensor.stored.shape for name, tensor in tensors.items() if name.endswith("h.0.attn.c_attn.weight")), ()
    )
    return len(shape) == 2 and shape[0] == 3 * shape[1]


def _linear_name(name: str) -> str:
    if name.startswith(("lm_head.", LINEAR_PREFIX)) or tensor_names.FURTHER_HEAD.fullmatch(name):
        return name
    return LINEAR_PREFIX + name.removeprefix("transformer.")


def checkpoint_from_tensors(
    content: Any, tensors: dict[str, LazyTensor], file: Path, config: Path | None
) -> Checkpoint:
    """The checkpoint in one file. content: all that the file contains besides its tensors. Raises ModelError."""
    given, settings = _given_entries(config, file)
    try:
        tensors = without_wrappers(tensors)
    except ModelError as error:
        raise ModelError(f"{file}: {error}") from None
    if mingpt.is_first_version(tensors):
        kind, entries, named = "minGPT state dict", mingpt.FIRST_ENTRIES, mingpt.first_version(tensors)
    else:
        named = in_known_layout(tensors)
        found = nanogpt.settings_of(content)
        if found is not None:
            kind, entries = found.kind, found.entries | _from_gpt(found.arguments)
            settings = settings or found.place
        elif entries := _of_transformers(content):
            kind, settings = "state dict with its config", settings or "config"
        elif not is_linear(named):
            kind, entries = "state dict", {}
        elif any(MASK.fullmatch(name) for name in named) and not _is_tied(named):
            kind, entries = "minGPT state dict", mingpt.ENTRIES
        else:
            kind, entries = "nanoGPT state dict", nanogpt.ENTRIES
    entries = {"model_type": "gpt2", **_sizes(named, file), **entries, **given}
    if not any(entries.get(name) is not None for name in ("n_head", "num_attention_heads")):
        raise ModelError(
            f"{file}: the number of attention heads is not stored with the weights; "
            'give a config.json with at least {"n_head": …} with --config'
        )
    if is_linear(named):
        named = nanogpt.with_biases(named)
        entries.setdefault("tie_word_embeddings", "lm_head.weight" not in named)
    assumed = given.get("activation_function") is None and not _of_transformers(content)
    dataset = nanogpt.dataset(content)
    return Checkpoint(kind, entries, named, file.parent, file, settings, dataset, activation_assumed=assumed)


def _of_transformers(content: Any) -> dict[str, Any]:
    """The entries of a config of transformers' that was saved with the weights; {} if there is none."""
    config = fields_of(content.get("config")) if isinstance(content, Mapping) else {}
    if not {"n_head", "n_positions", "activation_function"} <= config.keys():
        return {}
    return {name: config[name] for name in OF_TRANSFORMERS if config.get(name) is not None}


def _is_tied(tensors: Mapping[str, LazyTensor]) -> bool:
    """Whether the head equals the embedding, or only one of the two is there."""
    head, embedding = tensors.get("lm_head.weight"), tensors.get("model.wte.weight")
    if head is None or embedding is None:
        return True
    return head.stored.shape == embedding.stored.shape and same_numbers(head.read(), embedding.read())


def _given_entries(config: Path | None, file: Path) -> tuple[dict[str, Any], str | None]:
    """The entries of ``config``, or of the config.json in the folder of the weights; and the file's name, if any."""
    beside = file.parent / "config.json"
    path = config or (beside if beside.is_file() else None)
    if path is None:
        return {}, None
    raw = read_json(path)
    if isinstance(raw.get("model"), dict):  # minGPT's: {"system": …, "data": …, "model": …}
        raw = raw["model"]
    return _from_gpt(raw) if "block_size" in raw else raw, path.name


def _from_gpt(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """nanoGPT's or minGPT's settings as entries of a config.json."""
    entries = {name: arguments[name] for name in SHARED_ENTRIES if arguments.get(name) is not None}
    if arguments.get("block_size") is not None:
        entries["n_positions"] = arguments["block_size"]
    return entries


def _sizes(tensors: Mapping[str, LazyTensor], file: Path) -> dict[str, Any]:
    """The entries of a config.json that follow from the shapes."""
    shapes: dict[str, tuple[int, ...]] = {}
    layers = set()
    for name, tensor in tensors.items():
        rest = name.removeprefix("transformer.").removeprefix("model.")
        shapes[rest] = tensor.stored.shape
        if found := re.match(r"h\.(\d+)\.", rest):
            layers.add(found[1])
    embedding = shapes.get("wte.weight") or shapes.get("lm_head.weight") or ()
    positions = shapes.get("wpe.weight", ())
    if len(embedding) != 2 or len(positions) != 2 or not layers:
        raise ModelError(f"{file}: not the weights of a GPT-2 (it contains {listed(tensors, 3)})")
    sizes = {
        "vocab_size": embedding[0],
        "n_embd": embedding[1],
        "n_positions": positions[0],
        "n_layer": len(layers),
    }
    inner = shapes.get("h.0.mlp.c_fc.bias") or shapes.get("h.0.mlp.c_fc.weight") or ()
    if inner and max(inner) != 4 * embedding[1]:
        sizes["n_inner"] = max(inner)
    return sizes
