"""A GPT-2 that transformers made, as the oracle for what is loaded."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

SIZES: dict[str, Any] = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 24, "vocab_size": 97}


IDS = np.random.default_rng(1).integers(0, 97, (2, 20))


def theirs(**options: Any) -> transformers.GPT2LMHeadModel:
    """A GPT-2 with random weights, large enough that a wrong orientation or a lost bias shows."""
    torch.manual_seed(0)
    ends = {"eos_token_id": 96, "bos_token_id": 96}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES | ends | options)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.2)
    return model


def their_logits(model: transformers.GPT2LMHeadModel) -> np.ndarray:
    with torch.no_grad():
        logits: np.ndarray = model.float()(torch.tensor(IDS)).logits.numpy()
    return logits


def edit_config(folder: Path, **entries: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
