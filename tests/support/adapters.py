"""Adapters of PEFT and mlx-lm for tiny GPT-2s, with numbers as if they had been trained, and what those compute."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from .models import TinyGPT2
from .oracles import torch_logits

IDS = [5, 17, 80, 2, 9, 33, 100, 41, 7, 250]


def write_peft(folder: Path, base: TinyGPT2 | Callable[[], Any], *, pickled: bool = False, **options: Any) -> Path:
    """An adapter of PEFT for the model, or for that which a function makes. options: of LoraConfig."""
    import peft
    import torch

    torch.manual_seed(3)
    settings = {"r": 4, "lora_alpha": 8, "target_modules": ["c_attn"], "task_type": "CAUSAL_LM", **options}
    with warnings.catch_warnings(action="ignore"):  # about fan_in_fan_out and tied embeddings
        model = peft.get_peft_model(made(base), peft.LoraConfig(**settings))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        model.save_pretrained(str(folder), safe_serialization=not pickled)
    if pickled:
        save_pickled(folder)
    return folder


def made(base: TinyGPT2 | Callable[[], Any]) -> Any:
    return base.torch() if isinstance(base, TinyGPT2) else base()


def save_pickled(folder: Path) -> None:
    """The adapter's weights as a .bin file, which newer versions of PEFT no longer write."""
    import torch
    from safetensors.torch import load_file

    file = folder / "adapter_model.safetensors"
    if file.is_file():
        torch.save(load_file(file), folder / "adapter_model.bin")
        file.unlink()


def peft_logits(folder: Path, base: TinyGPT2 | Callable[[], Any], *, merged: bool = True) -> Any:
    """What PEFT computes with the adapter: [n, V]."""
    import peft

    with warnings.catch_warnings(action="ignore"):
        model = peft.PeftModel.from_pretrained(made(base), str(folder)).eval()
        if merged:
            model = model.merge_and_unload()
    return torch_logits(model, IDS)


def write_mlx_lm(
    folder: Path, model_folder: Path, kind: str = "lora", *, num_layers: int = 2, keys: Sequence[str] | None = None
) -> Path:
    """An adapter of mlx-lm for the model in a folder, made as `mlx_lm.lora` makes it."""
    from mlx_lm.tuner.utils import linear_to_lora_layers
    from mlx_lm.utils import load_model

    mx.random.seed(3)
    model, _ = load_model(model_folder)
    parameters: dict[str, Any] = {"rank": 4, "scale": 2.0, "dropout": 0.0}
    if keys is not None:
        parameters["keys"] = list(keys)
    model.freeze()
    if kind == "full":
        for layer in model.layers[-num_layers:]:
            layer.unfreeze()
    else:
        linear_to_lora_layers(model, num_layers, parameters, use_dora=kind == "dora")
    trained = {
        name: array + 0.1 * mx.random.normal(array.shape) for name, array in tree_flatten(model.trainable_parameters())
    }
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "adapters.safetensors"), trained)
    config = {
        "fine_tune_type": kind,
        "num_layers": num_layers,
        "lora_parameters": parameters,
        "model": str(model_folder),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=4))
    return folder


def mlx_lm_logits(folder: Path, model_folder: Path) -> Any:
    """What mlx-lm computes with the adapter: [n, V]."""
    from mlx_lm import load

    model, _ = load(str(model_folder), adapter_path=str(folder))[:2]
    return np.array(model(mx.array([IDS]))[0].astype(mx.float32))
