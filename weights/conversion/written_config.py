"""The config.json of a converted model, and whether mlx-lm can use the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxgen.network.config import ACTIVATIONS, GPT2Config, Quantization
from mlxgen.text.tokenizer import Tokenizer

#: Entries of the source's config.json that are not kept: they describe the place it came from, are other spellings of
#: entries that are written, or name Python files, which are not copied and which other programs would run.
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
    """Warnings about what mlx-lm's GPT-2, which has fewer options, does not support of this model."""
    refused, differs = [], []
    if not config.tie_word_embeddings:
        refused.append("a separate output head")
    if config.n_inner != 4 * config.n_embd:
        refused.append(f"an inner width of {config.n_inner}, not 4 times {config.n_embd}")
    if ACTIVATIONS[config.activation_function] != "gelu_tanh":
        differs.append(f"the activation {config.activation_function} (it uses gelu_new)")
    if not config.scale_attn_weights or config.scale_attn_by_inverse_layer_idx:
        differs.append("the model's attention scaling")
    limits = []
    if refused:
        limits.append(f"mlx-lm cannot open this model, only mlxgen can: it has {' and '.join(refused)}")
    if differs:
        limits.append(f"mlx-lm computes this model differently: its GPT-2 does not support {' or '.join(differs)}")
    return limits


def config_entries(
    source: Mapping[str, Any], config: GPT2Config, quantization: Quantization | None, dtype: str
) -> dict[str, Any]:
    """The entries of config.json: the source's, and those that mlx-lm requires."""
    kept = {key: value for key, value in source.items() if key not in DROPPED}
    entries = {
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
        block = _quantization_block(quantization)
        entries |= {"quantization": block, "quantization_config": block}
    return dict(sorted(entries.items()))


def with_start_and_end(entries: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """The entries with the tokenizer's start and end token where they name none.

    Null where the tokenizer has none: other programs read 50256 into a missing entry, whatever word that is.
    """
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    return dict(sorted({**ends, **entries}.items()))


def _quantization_block(quantization: Quantization) -> dict[str, Any]:
    """The entry as mlx-lm writes it."""
    block: dict[str, Any] = {
        "group_size": quantization.group_size,
        "bits": quantization.bits,
        "mode": quantization.mode,
    }
    for path, entry in quantization.layers.items():
        block[path] = False if entry is None else _quantization_block(entry)
    return block
