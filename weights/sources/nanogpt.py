"""nanoGPT's checkpoints (ckpt.pt): {"model": state dict, "model_args": {…}, "config": {…}, …}.

They have nn.Linear layers, the exact GELU (by erf), and a head that is tied to the embedding. The vocabulary is often
padded from 50,257 to 50,304 rows. With ``bias=False`` no layer has a bias, which is the same as biases of 0.

build-nanogpt's (log/model_19072.pt) have the settings in an object, {"model": state dict, "config": GPTConfig, …}. Its
model has the GELU by tanh, and its config has neither bias nor dropout, as nanoGPT's has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from mlxgen.dtypes import BY_TAG
from mlxgen.weights.files.headers import StoredTensor
from mlxgen.weights.sources.checkpoint import LazyTensor
from mlxgen.weights.sources.record import fields_of

ENTRIES: dict[str, Any] = {
    "activation_function": "gelu",
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}
BUILD_ENTRIES = ENTRIES | {"activation_function": "gelu_new"}
WITH_BIAS = re.compile(r"model\.(h\.\d+\.(ln_1|ln_2|attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)|ln_f)\.weight")


def with_biases(tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """The tensors, with biases of 0 added to every layer if no layer has one."""
    if any(WITH_BIAS.fullmatch(name.removesuffix("bias") + "weight") for name in tensors if name.endswith(".bias")):
        return dict(tensors)
    layers = {name.removesuffix("weight"): tensor for name, tensor in tensors.items() if WITH_BIAS.fullmatch(name)}
    return {**tensors, **{f"{layer}bias": _zero_bias(tensor.stored) for layer, tensor in layers.items()}}


def _zero_bias(weight: StoredTensor) -> LazyTensor:
    stored = replace(weight, shape=weight.shape[:1])

    def zeros() -> mx.array:
        return mx.zeros(stored.shape, BY_TAG[stored.dtype].mlx)

    return LazyTensor(stored, zeros)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a checkpoint says of its model."""

    kind: str  # of checkpoint, in words
    arguments: Mapping[str, Any]  # the sizes, under nanoGPT's names
    entries: dict[str, Any]  # of a config.json, that follow from the program
    place: str  # where they are in the file


def settings_of(content: Any) -> Settings | None:
    """The settings in a file's content, None if there are none."""
    if not isinstance(content, Mapping):
        return None
    if isinstance(arguments := content.get("model_args"), Mapping):
        return Settings("nanoGPT checkpoint", arguments, ENTRIES, "model_args")
    config = fields_of(content.get("config"))
    if not {"block_size", "n_head"} <= config.keys():
        return None
    if config.keys() & {"bias", "dropout"}:
        return Settings("nanoGPT checkpoint", config, ENTRIES, "config")
    return Settings("build-nanogpt checkpoint", config, BUILD_ENTRIES, "config")


def dataset(content: Any) -> str | None:
    """The name of the data folder that the model was trained on, which may contain its vocabulary."""
    settings = content.get("config") if isinstance(content, Mapping) else None
    name = settings.get("dataset") if isinstance(settings, Mapping) else None
    return name if isinstance(name, str) and re.fullmatch(r"\w[\w.-]*", name) else None
