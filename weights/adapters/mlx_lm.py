"""mlx-lm's adapters, as `mlx_lm.lora` writes them: LoRA, DoRA, and parameters that were trained as a whole.

model.h.0.attn.c_attn.lora_a [in, r], .lora_b [r, out]   of an embedding, [V, r] and [r, D]
model.h.0.attn.c_attn.m [out]                            DoRA's magnitudes; of an embedding, [V]
model.h.0.attn.c_attn.weight [out, in]                   with fine_tune_type "full"
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mlxgen.errors import ModelError, printable
from mlxgen.json_file import describe
from mlxgen.weights.adapters import entries as read
from mlxgen.weights.adapters.fit import Fit
from mlxgen.weights.sources.checkpoint import LazyTensor

KINDS = ("lora", "dora", "full")
PARTS = ("lora_a", "lora_b", "m")
EMBEDDINGS = ("model.wte", "model.wpe")


class Settings(NamedTuple):
    """The entries of adapter_config.json that the numbers depend on. A full fine-tune has neither rank nor scale."""

    kind: str
    rank: int = 0
    scale: float = 0.0


def read_settings(entries: Mapping[str, Any]) -> Settings:
    """Check the entries of adapter_config.json. Raises ModelError."""
    kind = entries.get("fine_tune_type", "lora")
    if kind not in KINDS:
        raise ModelError(f"fine_tune_type is {describe(kind)}; mlxgen reads {', '.join(KINDS)}")
    if kind == "full":
        return Settings(kind)
    parameters = read.mapping(entries, "lora_parameters")
    return Settings(
        kind,
        rank=read.rank("rank of lora_parameters", parameters.get("rank")),
        scale=read.number("scale of lora_parameters", parameters.get("scale")),
    )


def collect(fit: Fit, settings: Settings, tensors: Mapping[str, LazyTensor]) -> None:
    """Give every tensor its place in the model."""
    layers: dict[str, dict[str, LazyTensor]] = {}
    for name, tensor in tensors.items():
        path, _, part = name.rpartition(".")
        if settings.kind == "full":
            fit.replace(name, tensor)
        elif part in PARTS:
            layers.setdefault(path, {})[part] = tensor
        else:
            fit.unexpected(tensor)
    for path, parts in layers.items():
        magnitude = parts.get("m")
        if magnitude is not None and settings.kind != "dora":
            fit.unexpected(magnitude)
        elif magnitude is None and settings.kind == "dora":
            raise ModelError(f"fine_tune_type is dora, but {printable(path, 200)} has no m")
        fit.add_product(
            f"{path}.weight",
            parts.get("lora_a"),
            parts.get("lora_b"),
            magnitude,
            scale=settings.scale,
            rank=settings.rank,
            transpose=path not in EMBEDDINGS,
        )
