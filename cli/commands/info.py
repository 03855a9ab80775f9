"""`mlxgen info`: what a model is, read from its files' headers; its weights are not loaded."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import click

from mlxgen.cli.output import size, write, write_json


@click.command()
@click.argument("model", default="fairy-tales", envvar="MLXGEN_MODEL")
@click.option("--revision", help="Branch, tag or commit of a model on the hub.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def info(model: str, revision: str | None, as_json: bool) -> None:
    """Layers, parameters, memory and tokenizer of MODEL: a folder, a hub id, an alias, or fairy-tales.

    A model on the hub is downloaded first, as for every command. Nothing of it is computed with.

    --json prints one object with these keys: model, path, n_layer, n_head, n_embd, n_inner, n_positions,
    vocab_size, activation_function, tie_word_embeddings, n_parameters, stored_dtype, stored_bytes,
    quantization (bits, group_size; or null), compute_dtype, weight_bytes (in memory), cache_bytes_per_token,
    cache_bytes (of a full context), tokenizer_size, end_tokens (id and text), chat_template (whether there is
    one).
    """
    entries = describe(model, revision)
    if as_json:
        write_json(entries)
    else:
        write("".join(f"{name:<12}{value}\n" for name, value in _lines(entries)))


def describe(name: str, revision: str | None = None) -> dict[str, Any]:
    """What `mlxgen info --json` prints."""
    import mlx.core as mx

    from mlxgen import blas, device
    from mlxgen.network.config import read_config
    from mlxgen.text.tokenizer import load_tokenizer
    from mlxgen.weights.files.headers import ITEMSIZE, read_headers
    from mlxgen.weights.hub.resolve import resolve
    from mlxgen.weights.layouts import match
    from mlxgen.weights.load import end_tokens

    blas.loaded_library()
    folder = resolve(name, revision)
    config = read_config(folder)
    layout = match(read_headers(folder), config)
    tokenizer = load_tokenizer(folder, n_embeddings=config.vocab_size)
    types: Counter[str] = Counter()
    for source in layout.sources.values():
        types[source.tensor.dtype] += math.prod(source.tensor.shape)
    floats = [name for name in ("BF16", "F16", "F32") if name in types]
    stored = max(floats, key=lambda name: types[name])
    compute = device.compute_dtype({"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}[stored])
    stored_bytes = sum(count * ITEMSIZE[dtype] for dtype, count in types.items())
    packed = bool(layout.packed) and not device.on_cpu()
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
        "stored_dtype": stored,
        "stored_bytes": stored_bytes,
        "quantization": {"bits": q.bits, "group_size": q.group_size} if q else None,
        "compute_dtype": str(compute).removeprefix("mlx.core."),
        "weight_bytes": stored_bytes if packed else config.n_parameters * compute.size,
        "cache_bytes_per_token": per_token,
        "cache_bytes": per_token * config.n_positions,
        "tokenizer_size": tokenizer.vocab_size,
        "end_tokens": [{"token": token, "text": tokenizer.token(token)} for token in ends],
        "chat_template": tokenizer.chat_template is not None,
    }


def _lines(entries: dict[str, Any]) -> list[tuple[str, str]]:
    e = entries
    quantized = e["quantization"]
    packed = f", {quantized['bits']} bits in groups of {quantized['group_size']}" if quantized else ""
    ends = ", ".join(f"{end['token']} {end['text']!r}" for end in e["end_tokens"]) or "none"
    tied = "tied to the embedding" if e["tie_word_embeddings"] else "its own"
    return [
        ("model", e["model"]),
        ("path", e["path"]),
        ("layers", f"{e['n_layer']}"),
        ("heads", f"{e['n_head']}"),
        ("width", f"{e['n_embd']} (inner {e['n_inner']}, {e['activation_function']})"),
        ("head", tied),
        ("parameters", f"{e['n_parameters']:,}"),
        ("stored", f"{size(e['stored_bytes'])} as {e['stored_dtype']}{packed}"),
        ("memory", f"{size(e['weight_bytes'])} of weights, computed in {e['compute_dtype']}"),
        ("cache", f"{e['cache_bytes_per_token']:,} bytes a token, {size(e['cache_bytes'])} for a full context"),
        ("context", f"{e['n_positions']:,} positions"),
        ("tokenizer", f"{e['tokenizer_size']:,} tokens" + (", chat template" if e["chat_template"] else "")),
        ("end tokens", ends),
    ]
