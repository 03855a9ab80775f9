"""Model files of llm.c, written as `write_model` in its train_gpt2.py writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from .models import TinyGPT2

MAGIC, ROWS = 20240326, 128  # it pads the vocabulary to a multiple of 128
VERSIONS = {torch.float32: 3, torch.bfloat16: 5}
KINDS = (
    "ln_1.weight",
    "ln_1.bias",
    "attn.c_attn.weight",
    "attn.c_attn.bias",
    "attn.c_proj.weight",
    "attn.c_proj.bias",
    "ln_2.weight",
    "ln_2.bias",
    "mlp.c_fc.weight",
    "mlp.c_fc.bias",
    "mlp.c_proj.weight",
    "mlp.c_proj.bias",
)


def write_llmc(file: Path, model: TinyGPT2, dtype: torch.dtype = torch.float32) -> Path:
    """Write the model. The rows of padding are ones, so that they would be noticed."""
    config, weights = model.config, model.weights
    embedding = weights["model.wte.weight"]
    padding = np.ones((-len(embedding) % ROWS, config.n_embd), np.float32)
    tensors = [np.concatenate([embedding, padding]), weights["model.wpe.weight"]]
    for kind in KINDS:
        tensors += [weights[f"model.h.{layer}.{kind}"] for layer in range(config.n_layer)]
    tensors += [weights["model.ln_f.weight"], weights["model.ln_f.bias"]]
    header = np.zeros(256, "<i4")
    header[:8] = (
        MAGIC,
        VERSIONS[dtype],
        config.n_positions,
        len(embedding),
        config.n_layer,
        config.n_head,
        config.n_embd,
        len(tensors[0]),
    )
    with file.open("wb") as stream:
        stream.write(header.tobytes())
        for tensor in tensors:
            stream.write(torch.tensor(tensor).to(dtype).view(torch.uint8).numpy().tobytes())
    return file
