"""`mlxgen info`: a model's shape, size and tokenizer, read from the headers of its files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlxgen.cli.completion import complete_model
from mlxgen.cli.options import adapter_option, dtype_option, revision_option, warnings_as_lines
from mlxgen.cli.output import size, write, write_json

if TYPE_CHECKING:
    from mlxgen.weights.adapters.adapter import Adapter
    from mlxgen.weights.parameters import DecoderWeights


@click.command()
@click.argument("model", default="fairy-tales", envvar="MLXGEN_MODEL", shell_complete=complete_model)
@adapter_option
@revision_option
@dtype_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def info(model: str, adapter: str | None, revision: str | None, dtype: str | None, as_json: bool) -> None:
    """Show the layers, parameters, memory and tokenizer of MODEL: a folder, a hub id, an alias, or fairy-tales.

    A model on the hub is downloaded first. Its weights are not loaded, nor are those of an adapter.

    --json prints one object with these keys: model, path, n_layer, n_head, n_embd, n_inner, n_positions,
    vocab_size, activation_function, tie_word_embeddings, n_parameters, stored_dtype, stored_bytes,
    quantization (bits, group_size; or null), compute_dtype, weight_bytes (in memory), cache_bytes_per_token,
    cache_bytes (of a full context), tokenizer_size, end_tokens (id and text), chat_template (whether there is
    one), adapter (name, kind, base: the model it was trained on, parameters: how many it changes; or null), advice
    (a list of sentences: what would make the model faster on this device).
    """
    with warnings_as_lines():
        entries = describe(model, revision, dtype, adapter)
    if as_json:
        write_json(entries)
    else:
        write("".join(f"{name:<12}{value}\n" for name, value in _lines(entries)))
        write("".join(f"\n{sentence}\n" for sentence in entries["advice"]))


def describe(
    name: str, revision: str | None = None, dtype: str | None = None, adapter: str | None = None
) -> dict[str, Any]:
    """What `mlxgen info --json` prints."""
    from mlxgen import blas, device, dtypes
    from mlxgen.network.config import read_config
    from mlxgen.text.tokenizer import load_tokenizer
    from mlxgen.weights import resolve
    from mlxgen.weights.layouts import read_layout
    from mlxgen.weights.load import end_tokens, folder_weights, tokenizer_folder, with_adapter
    from mlxgen.weights.metal_speed import advice

    blas.loaded_library()
    opened = None
    if adapter is not None:
        from mlxgen.weights.adapters.adapter import open_adapter

        opened = open_adapter(adapter)
    folder = resolve(name, revision)
    config = read_config(folder)
    layout = read_layout(folder, config)
    merged = None if opened is None else with_adapter(folder_weights(folder), opened)
    if merged is not None:
        config = merged.config
    tokenizer = load_tokenizer(tokenizer_folder(folder, opened), n_embeddings=config.vocab_size)
    compute = device.compute_dtype(layout.dtype.mlx, dtype)
    packed = bool(layout.packed) and not device.on_cpu()
    packed_bytes = merged.bytes_where_packed(compute.size) if merged else layout.nbytes
    ends = sorted(end_tokens(folder, config, tokenizer.eos_token_id))
    q = config.quantization if layout.packed else None
    per_token = config.cache_bytes_per_token(compute.size)
    return {
        "model": name,
        "path": str(folder),
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_embd": config.n_embd,
        "n_inner": config.n_inner,
        "n_positions": config.n_positions,
        "vocab_size": config.vocab_size,
        "activation_function": config.activation_function,
        "tie_word_embeddings": config.tie_word_embeddings,
        "n_parameters": config.n_parameters,
        "stored_dtype": layout.dtype.tag,
        "stored_bytes": layout.nbytes,
        "quantization": {"bits": q.bits, "group_size": q.group_size} if q else None,
        "compute_dtype": dtypes.name_of(compute),
        "weight_bytes": packed_bytes if packed else config.weight_bytes(compute.size),
        "cache_bytes_per_token": per_token,
        "cache_bytes": per_token * config.n_positions,
        "tokenizer_size": tokenizer.vocab_size,
        "end_tokens": [{"token": token, "text": tokenizer.token(token)} for token in ends],
        "chat_template": tokenizer.chat_template is not None,
        "adapter": merged and opened and _adapter_entries(opened, merged),
        "advice": advice(name, config, layout),
    }


def _adapter_entries(adapter: Adapter, merged: DecoderWeights) -> dict[str, Any]:
    names = ("name", "kind", "base")
    return {name: getattr(adapter, name) for name in names} | {"parameters": len(merged.changes)}


def _lines(entries: dict[str, Any]) -> list[tuple[str, str]]:
    e = entries
    quantized = e["quantization"]
    packed = f", {quantized['bits']} bits in groups of {quantized['group_size']}" if quantized else ""
    ends = ", ".join(f"{end['token']} {end['text']!r}" for end in e["end_tokens"]) or "none"
    tied = "tied to the embedding" if e["tie_word_embeddings"] else "its own"
    adapter = e["adapter"]
    added = [("adapter", "{name} ({kind}, changes {parameters} parameters)".format_map(adapter))] if adapter else []
    return [
        ("model", e["model"]),
        *added,
        ("path", e["path"]),
        ("layers", f"{e['n_layer']}"),
        ("heads", f"{e['n_head']}"),
        ("width", f"{e['n_embd']} (inner {e['n_inner']}, {e['activation_function']})"),
        ("head", tied),
        ("parameters", f"{e['n_parameters']:,}"),
        ("stored", f"{size(e['stored_bytes'])} as {e['stored_dtype']}{packed}"),
        ("memory", f"{size(e['weight_bytes'])} of weights, computed in {e['compute_dtype']}"),
        ("cache", f"{e['cache_bytes_per_token']:,} bytes per token, {size(e['cache_bytes'])} for a full context"),
        ("context", f"{e['n_positions']:,} positions"),
        ("tokenizer", f"{e['tokenizer_size']:,} tokens" + (", chat template" if e["chat_template"] else "")),
        ("end tokens", ends),
    ]
