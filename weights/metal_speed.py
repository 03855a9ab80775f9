"""What makes a checkpoint decode more slowly on Metal than it could. Nothing here is measured: it follows from MLX."""

from __future__ import annotations

import shlex

from mlxgen import device
from mlxgen.dtypes import FLOAT32
from mlxgen.errors import ModelError
from mlxgen.network.config import GPT2Config
from mlxgen.weights.layouts import Layout, read_layout
from mlxgen.weights.local_models import list_local_models


def advice(name: str, config: GPT2Config, layout: Layout) -> list[str]:
    """What would make the model called ``name`` faster on this device: sentences, none on the CPU backend."""
    if device.on_cpu():
        return []
    found = []
    if layout.dtype == FLOAT32 and not layout.packed:
        found.append(
            f"{name} is stored as float32. Stored as float16, it should decode about twice as fast, because each token"
            f" reads half as many bytes: mlxgen convert {shlex.quote(name)} --dtype float16"
        )
    if not device.has_vector_attention(config.head_dim):
        dims = ", ".join(map(str, device.VECTOR_HEAD_DIMS))
        found.append(
            f"{name} has heads of {config.head_dim} numbers. MLX has a fast attention kernel for decoding with heads of"
            f" {dims} only, so it decodes more slowly than its size suggests."
        )
    return found


def advice_for_local_models() -> list[str]:
    """The same for each model on this machine that can be opened."""
    if device.on_cpu():
        return []
    found = []
    for model in list_local_models():
        if not model.pickled:
            try:
                found += advice(model.name, model.config, read_layout(model.path, model.config))
            except ModelError:
                continue
    return found
