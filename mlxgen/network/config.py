"""GPT2Config: a config.json, read and checked once. All other modules rely on these checks.

The file is untrusted: sizes have limits, and an unsupported feature raises an error that names it. Missing entries get
the defaults of transformers' GPT2Config, except for the start and end tokens: only a tokenizer tells whether 50256 is
GPT-2's end token or an ordinary word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxgen.errors import ModelError, printable
from mlxgen.json_file import describe, read_json

#: Activation names that a config.json may use -> the function in activations.py.
ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu": "gelu_erf",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}

#: Largest accepted value for each size, well above GPT-3 (96 layers, n_embd 12,288).
LIMITS = {
    "vocab_size": 1 << 22,
    "n_positions": 1 << 22,
    "n_embd": 1 << 16,
    "n_layer": 1 << 12,
    "n_head": 1 << 12,
    "n_inner": 1 << 18,
}

#: Accepted names for each size: GPT-2's own, those in files from 2019, and the general names that transformers accepts.
SPELLINGS = {
    "vocab_size": ("vocab_size", "vocab_size_or_config_json_file"),
    "n_positions": ("n_positions", "max_position_embeddings", "n_ctx"),
    "n_embd": ("n_embd", "hidden_size"),
    "n_layer": ("n_layer", "num_hidden_layers"),
    "n_head": ("n_head", "num_attention_heads"),
    "n_inner": ("n_inner",),
}

DEFAULTS = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}

#: MLX's quantization modes -> the default (group_size, bits) of each.
QUANTIZATION_MODES = {"affine": (64, 4), "mxfp4": (32, 4), "nvfp4": (16, 4), "mxfp8": (32, 8)}


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the weights are quantized: ``bits`` per weight and one scale per ``group_size`` weights, as in mlx-lm.

    ``layers`` maps a layer's path ("model.h.0.mlp.c_fc") to its own settings; None means that it is not quantized.
    """

    group_size: int
    bits: int
    mode: str = "affine"
    layers: Mapping[str, Quantization | None] = field(default_factory=dict, hash=False)

    def for_layer(self, path: str) -> Quantization | None:
        """The settings of the layer at ``path``; None if it is not quantized."""
        return self.layers.get(path, self)


@dataclass(frozen=True, slots=True)
class GPT2Config:
    """The sizes and settings of a GPT-2 model. Made by `from_dict` or `read_config`."""

    vocab_size: int = DEFAULTS["vocab_size"]
    n_positions: int = DEFAULTS["n_positions"]
    n_embd: int = DEFAULTS["n_embd"]
    n_layer: int = DEFAULTS["n_layer"]
    n_head: int = DEFAULTS["n_head"]
    n_inner: int = 4 * DEFAULTS["n_embd"]
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    reorder_and_upcast_attn: bool = False
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    quantization: Quantization | None = None
    conversational: bool = False  # the config has settings for conversations, as DialoGPT's has

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.n_embd // self.n_head

    @property
    def n_parameters(self) -> int:
        """Number of weights; a tied head is counted once."""
        width, inner = self.n_embd, self.n_inner
        attention = width * 3 * width + 3 * width + width * width + width
        mlp = width * inner + inner + inner * width + width
        block = attention + mlp + 4 * width  # two layer norms
        embeddings = (self.vocab_size + self.n_positions) * width
        head = 0 if self.tie_word_embeddings else self.vocab_size * width
        return embeddings + self.n_layer * block + 2 * width + head

    def weight_bytes(self, itemsize: int) -> int:
        """Bytes of unpacked weights in memory: `itemsize` a number, but 4 in the head, which computes in float32."""
        return itemsize * self.n_parameters + (4 - itemsize) * self.vocab_size * self.n_embd

    def cache_bytes_per_token(self, itemsize: int) -> int:
        """Bytes of cache per position: a key and a value of n_embd numbers in each layer."""
        return 2 * self.n_layer * self.n_embd * itemsize

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> GPT2Config:
        """Check the entries of a config.json. Raises ModelError naming the invalid entry and the values it may have."""
        _check_kind(entries)
        sizes = {name: _size(entries, name, default) for name, default in DEFAULTS.items()}
        if sizes["n_embd"] % sizes["n_head"]:
            raise ModelError(
                f"n_embd {sizes['n_embd']} is not divisible by n_head {sizes['n_head']}: "
                "the heads must share the width equally"
            )
        activation = entries.get("activation_function")
        if activation is None:
            activation = "gelu_new"
        if not isinstance(activation, str) or activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise ModelError(f"activation_function {describe(activation)} is not supported; supported are {known}")
        return cls(
            **sizes,
            n_inner=_size(entries, "n_inner", 4 * sizes["n_embd"]),
            activation_function=activation,
            layer_norm_epsilon=_epsilon(entries.get("layer_norm_epsilon")),
            scale_attn_weights=_flag(entries, "scale_attn_weights", True),
            scale_attn_by_inverse_layer_idx=_flag(entries, "scale_attn_by_inverse_layer_idx", False),
            reorder_and_upcast_attn=_flag(entries, "reorder_and_upcast_attn", False),
            tie_word_embeddings=_flag(entries, "tie_word_embeddings", True),
            bos_token_id=next(iter(token_ids(entries, "bos_token_id", sizes["vocab_size"])), None),
            eos_token_ids=token_ids(entries, "eos_token_id", sizes["vocab_size"]),
            quantization=_quantization(entries),
            conversational=_is_conversational(entries.get("task_specific_params")),
        )


def read_config(folder: Path) -> GPT2Config:
    """Read and check ``folder``/config.json. Raises ModelError."""
    path = folder / "config.json"
    entries = read_json(path)
    try:
        return GPT2Config.from_dict(entries)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def token_ids(entries: Mapping[str, Any], name: str, vocab_size: int) -> tuple[int, ...]:
    """The token ids of an entry that holds one id or a list of them.

    Ids outside the vocabulary are left out: the file of a small model often keeps GPT-2's 50256. Raises ModelError for
    any other kind of entry.
    """
    value = entries.get(name)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for item in ids:
        if type(item) is not int:
            raise ModelError(f"{name} is {describe(value)}; it must be a token id, a list of token ids, or null")
    return tuple(dict.fromkeys(item for item in ids if 0 <= item < vocab_size))


def _check_kind(entries: Mapping[str, Any]) -> None:
    """Raise ModelError unless the entries describe a GPT-2 language model."""
    kind = entries.get("model_type")
    if kind is None and not any(entries.get(name) is not None for name in ("n_embd", "n_layer", "n_head")):
        raise ModelError('has no model_type and no sizes; a GPT-2 config has "model_type": "gpt2"')
    if kind is not None and kind != "gpt2":
        raise ModelError(f'model_type is {describe(kind)}; mlxgen opens only GPT-2 models ("model_type": "gpt2")')
    if _flag(entries, "add_cross_attention", False):
        raise ModelError(
            "the model has cross-attention (it is the decoder of an encoder-decoder model); "
            "mlxgen opens only decoder-only models (add_cross_attention false)"
        )


def _size(entries: Mapping[str, Any], name: str, default: int) -> int:
    found = next(((key, entries[key]) for key in SPELLINGS[name] if entries.get(key) is not None), None)
    if found is None:
        return default
    key, value = found
    if type(value) is not int or not 1 <= value <= LIMITS[name]:
        raise ModelError(f"{key} is {describe(value)}; it must be a whole number from 1 to {LIMITS[name]}")
    return value


def _flag(entries: Mapping[str, Any], name: str, default: bool) -> bool:
    value = entries.get(name)
    if value is None:
        return default
    if type(value) is not bool:
        raise ModelError(f"{name} is {describe(value)}; it must be true or false")
    return value


def _epsilon(value: Any) -> float:
    if value is None:
        return 1e-5
    if type(value) not in (int, float) or not 0 < value < 1:  # False for NaN
        raise ModelError(f"layer_norm_epsilon is {describe(value)}; it must be a number between 0 and 1")
    return float(value)


def _is_conversational(tasks: Any) -> bool:
    return isinstance(tasks, dict) and "conversational" in tasks


def _quantization(entries: Mapping[str, Any]) -> Quantization | None:
    name = "quantization" if entries.get("quantization") is not None else "quantization_config"
    block = entries.get(name)
    if block is None:
        return None
    if not isinstance(block, dict):
        raise ModelError(f"{name} is {describe(block)}; it must be an object")
    if "quant_method" in block:
        raise ModelError(
            f"the weights are quantized with {describe(block['quant_method'])}, which mlxgen cannot read; "
            "use the unquantized weights, or a folder written by mlx-lm or `mlxgen convert`"
        )
    top = _packing(name, block)
    layers: dict[str, Quantization | None] = {}
    for path, entry in block.items():
        if isinstance(entry, dict):
            layers[path] = _packing(f"{name} of {printable(path)}", entry)
        elif entry is False:
            layers[path] = None
    return Quantization(top.group_size, top.bits, top.mode, layers)


def _packing(where: str, block: Mapping[str, Any]) -> Quantization:
    mode = block.get("mode", "affine")
    if not isinstance(mode, str) or mode not in QUANTIZATION_MODES:
        raise ModelError(
            f"{where}: mode {describe(mode)} is not supported; supported are {', '.join(QUANTIZATION_MODES)}"
        )
    default_group, default_bits = QUANTIZATION_MODES[mode]
    group_size, bits = block.get("group_size", default_group), block.get("bits", default_bits)
    if type(group_size) is not int or group_size not in (16, 32, 64, 128):
        raise ModelError(f"{where}: group_size is {describe(group_size)}; it must be 16, 32, 64 or 128")
    if type(bits) is not int or bits not in (2, 3, 4, 5, 6, 8):
        raise ModelError(f"{where}: bits is {describe(bits)}; it must be 2, 3, 4, 5, 6 or 8")
    if mode != "affine" and (group_size, bits) != (default_group, default_bits):
        raise ModelError(f"{where}: {mode} has a group_size of {default_group} and {default_bits} bits, and no others")
    return Quantization(group_size, bits, mode)
