"""GGUF files as the gguf package writes them: a tiny GPT-2 in any of its types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from .models import TinyGPT2

LAYER = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
OUTSIDE = {
    "model.wte.weight": "token_embd.weight",
    "model.wpe.weight": "position_embd.weight",
    "model.ln_f.weight": "output_norm.weight",
    "model.ln_f.bias": "output_norm.bias",
    "lm_head.weight": "output.weight",
}


def gguf_name(name: str) -> str:
    if name in OUTSIDE:
        return OUTSIDE[name]
    _, _, layer, rest = name.split(".", 3)
    module, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{LAYER[module]}.{kind}"


def write_gguf(
    path: Path, tiny: TinyGPT2, type: str = "F32", types: Mapping[str, str] | None = None, **entries: Any
) -> TinyGPT2:
    """Write the model; its layers and embedding in ``type``, other tensors by their GGUF name in ``types``.

    entries: further or other metadata, by names whose "__" stands for a dot; None leaves an entry out. Returns the
    model with the weights that the file holds, as the gguf package unpacks them.
    """
    config = tiny.config
    writer = gguf.GGUFWriter(path, entries.pop("architecture", "gpt2"))
    vocabulary = json.loads(tiny.tokenizer.to_str())
    tokens = {number: token for token, number in vocabulary["model"]["vocab"].items()}
    tokens |= {added["id"]: added["content"] for added in vocabulary["added_tokens"]}
    special = {added["id"] for added in vocabulary["added_tokens"]}
    metadata = {
        "gpt2.block_count": config.n_layer,
        "gpt2.context_length": config.n_positions,
        "gpt2.embedding_length": config.n_embd,
        "gpt2.feed_forward_length": config.n_inner,
        "gpt2.attention.head_count": config.n_head,
        "gpt2.attention.layer_norm_epsilon": config.layer_norm_epsilon,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [tokens.get(at, f"[PAD{at}]") for at in range(config.vocab_size)],
        "tokenizer.ggml.token_type": [
            3 if at in special else 1 if at in tokens else 5 for at in range(config.vocab_size)
        ],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in vocabulary["model"]["merges"]] or None,
        "tokenizer.ggml.bos_token_id": config.bos_token_id,
        "tokenizer.ggml.eos_token_id": config.eos_token_ids[0],
    }
    metadata |= {name.replace("__", "."): value for name, value in entries.items()}
    for key, value in metadata.items():
        add = {bool: writer.add_bool, str: writer.add_string, float: writer.add_float32, list: writer.add_array}
        if value is not None:
            add.get(value.__class__, writer.add_uint32)(key, value)  # type: ignore[operator]
    held = {}
    for name, array in tiny.weights.items():
        kind = Type.F32 if array.ndim == 1 or name == "model.wpe.weight" else Type[type]
        kind = Type[(types or {}).get(gguf_name(name), kind.name)]
        data = gguf.quants.quantize(array, kind)
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
        held[name] = np.array(gguf.quants.dequantize(data, kind), np.float32).reshape(array.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return replace(tiny, weights=held)
