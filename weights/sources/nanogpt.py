"""nanoGPT's checkpoints (ckpt.pt): {"model": state dict, "model_args": {…}, "config": {…}, …}.

Its products are nn.Linear, its GELU is exact (by erf), its head is tied to the embedding, its vocabulary is often
padded from 50,257 to 50,304 rows, and with ``bias=False`` no layer has biases, which is the same as biases of 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mlxgen.weights.files.headers import StoredTensor
from mlxgen.weights.sources.record import LazyTensor

if TYPE_CHECKING:
    import mlx.core as mx

ENTRIES: dict[str, Any] = {
    "activation_function": "gelu",
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}
WITH_BIAS = re.compile(r"model\.(h\.\d+\.(ln_1|ln_2|attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)|ln_f)\.weight")


def with_biases(tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """The tensors with a bias of 0 for each layer, where they have no bias at all."""
    if any(WITH_BIAS.fullmatch(name.removesuffix("bias") + "weight") for name in tensors if name.endswith(".bias")):
        return dict(tensors)
    added = {}
    for name, held in tensors.items():
        if WITH_BIAS.fullmatch(name):
            stored = StoredTensor(held.stored.file, held.stored.dtype, held.stored.shape[:1])
            added[name.removesuffix("weight") + "bias"] = LazyTensor(stored, lambda stored=stored: _zeros(stored))  # type: ignore[misc]
    return {**tensors, **added}


def _zeros(stored: StoredTensor) -> mx.array:
    import mlx.core as mx

    return mx.zeros(stored.shape, {"F16": mx.float16, "BF16": mx.bfloat16}.get(stored.dtype, mx.float32))


def dataset(content: Any) -> str | None:
    """The name of the data folder the model was trained on; its vocabulary may lie there."""
    settings = content.get("config") if isinstance(content, Mapping) else None
    name = settings.get("dataset") if isinstance(settings, Mapping) else None
    return name if isinstance(name, str) and re.fullmatch(r"\w[\w.-]*", name) else None
