"""A model with random weights in one of GPT-2's shapes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

SHAPES = {
    "124M": {},
    "355M": {"n_embd": 1024, "n_layer": 24, "n_head": 16},
    "774M": {"n_embd": 1280, "n_layer": 36, "n_head": 20},
}


def random_folder(folder: Path, **sizes: Any) -> Path:
    """Write a folder that every side opens: a GPT-2 with random weights, and the bundled model's tokenizer.

    sizes: config entries other than 124M's.
    """
    import mlx.core as mx
    from mlx.utils import tree_flatten

    from mlxgen.network.config import GPT2Config
    from mlxgen.network.decoder import GPT2
    from mlxgen.weights.hub.names import BUNDLED_FOLDER

    folder.mkdir(parents=True, exist_ok=True)
    config = GPT2Config.from_dict({"model_type": "gpt2", **sizes})
    mx.random.seed(0)
    weights = {}
    for name, value in tree_flatten(GPT2(config).parameters()):
        weights[name] = mx.random.normal(value.shape) * 0.02 if value.ndim == 2 else value
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    entries = {
        "model_type": "gpt2",
        "n_ctx": config.n_positions,
        "activation_function": config.activation_function,
        "vocab_size": config.vocab_size,
        "n_positions": config.n_positions,
        "n_embd": config.n_embd,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "eos_token_id": None,
        "bos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(entries))
    shutil.copy(BUNDLED_FOLDER / "tokenizer.json", folder)
    return folder
