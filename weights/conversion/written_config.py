"""The config.json of a converted model, and what mlx-lm, which reads it too, makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxgen.network.config import GPT2Config, Quantization

#: Entries of a config.json that describe its first home, or other spellings of entries that are written anew,
#: or name Python files beside it, which are not copied and which other programs would run.
DROPPED = (
    "_name_or_path",
    "transformers_version",
    "dtype",
    "quantization_config",
    "quantization",
    "vocab_size_or_config_json_file",
    "max_position_embeddings",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "auto_map",
    "model_file",
)


def mlx_lm_limits(config: GPT2Config) -> list[str]:
    """What mlx-lm's GPT-2, which has fewer options than GPT-2's config, makes of this model."""
    refused, differs = [], []
    if not config.tie_word_embeddings:
        refused.append("an output head of its own")
    if config.n_inner != 4 * config.n_embd:
        refused.append(f"an inner width of {config.n_inner}, not 4 times {config.n_embd}")
    if config.activation_function not in ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"):
        differs.append(f"the activation {config.activation_function} (it takes GPT-2's gelu_new)")
    if not config.scale_attn_weights or config.scale_attn_by_inverse_layer_idx:
        differs.append("the scale of its attention")
    limits = []
    if refused:
        limits.append(f"mlx-lm cannot open this model, only mlxgen can: it has {' and '.join(refused)}")
    if differs:
        limits.append(f"mlx-lm computes this model differently: its GPT-2 does not know {' and '.join(differs)}")
    return limits


def written_config(
    source: Mapping[str, Any], config: GPT2Config, quantization: Quantization | None, dtype: str
) -> dict[str, Any]:
    """config.json: the source's entries, with what mlx-lm requires spelt out."""
    kept = {key: value for key, value in source.items() if key not in DROPPED}
    ends = {"bos_token_id": config.bos_token_id, "eos_token_id": next(iter(config.eos_token_ids), None)}
    entries = {
        **ends,
        **kept,
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocab_size,
        "n_positions": config.n_positions,
        "n_ctx": config.n_positions,
        "n_embd": config.n_embd,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_inner": None if config.n_inner == 4 * config.n_embd else config.n_inner,
        "activation_function": config.activation_function,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": dtype,
    }
    if quantization is not None:
        block = _block(quantization)
        entries |= {"quantization": block, "quantization_config": block}
    return dict(sorted(entries.items()))


def _block(quantization: Quantization) -> dict[str, Any]:
    """mlx-lm's entry."""
    block: dict[str, Any] = {
        "group_size": quantization.group_size,
        "bits": quantization.bits,
        "mode": quantization.mode,
    }
    for path, entry in quantization.layers.items():
        block[path] = False if entry is None else _block(entry)
    return block
