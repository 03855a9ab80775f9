"""minGPT's state dicts, in two versions. The number of heads is only in the config.json beside the weights.

The current version names its modules as GPT-2 does; it has nn.Linear layers, GELU by tanh, and a separate output head.
The first version (2020) has other names, separate query, key and value layers, and the exact GELU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import mlx.core as mx

from mlxgen.weights.sources.checkpoint import LazyTensor

ENTRIES: dict[str, Any] = {"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
FIRST_ENTRIES: dict[str, Any] = ENTRIES | {"activation_function": "gelu", "tie_word_embeddings": False}

FIRST_NAMES = (
    (r"tok_emb\.weight", "model.wte.weight"),
    (r"pos_emb", "model.wpe.weight"),
    (r"head\.weight", "lm_head.weight"),
    (r"ln_f\.(weight|bias)", r"model.ln_f.\1"),
    (r"blocks\.(\d+)\.ln([12])\.(weight|bias)", r"model.h.\1.ln_\2.\3"),
    (r"blocks\.(\d+)\.attn\.proj\.(weight|bias)", r"model.h.\1.attn.c_proj.\2"),
    (r"blocks\.(\d+)\.mlp\.0\.(weight|bias)", r"model.h.\1.mlp.c_fc.\2"),
    (r"blocks\.(\d+)\.mlp\.2\.(weight|bias)", r"model.h.\1.mlp.c_proj.\2"),
)
QUERY = re.compile(r"blocks\.(\d+)\.attn\.query\.(weight|bias)")
JOINED_OR_MASK = re.compile(r"blocks\.\d+\.attn\.((query|key|value)\.(weight|bias)|mask)")


def is_first_version(tensors: Mapping[str, LazyTensor]) -> bool:
    """Whether these are the tensors of minGPT's first version."""
    return "tok_emb.weight" in tensors and "pos_emb" in tensors


def first_version(tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """The first version's tensors under the decoder's names. Tensors that it does not know keep their names."""
    named: dict[str, LazyTensor] = {}
    for name, tensor in tensors.items():
        if name == "pos_emb" and len(tensor.stored.shape) == 3:  # [1, n_positions, D]
            tensor = _flat(tensor)
        if found := QUERY.fullmatch(name):
            parts = [tensors.get(name.replace("query", part)) for part in ("query", "key", "value")]
            if all(part is not None for part in parts):
                named[f"model.h.{found[1]}.attn.c_attn.{found[2]}"] = _joined([p for p in parts if p is not None])
        elif not JOINED_OR_MASK.fullmatch(name):
            named[_renamed(name)] = tensor
    return named


def _renamed(name: str) -> str:
    for pattern, replacement in FIRST_NAMES:
        if found := re.fullmatch(pattern, name):
            return found.expand(replacement)
    return name


def _flat(tensor: LazyTensor) -> LazyTensor:
    """The tensor without its first axis, which has one entry."""
    stored = replace(tensor.stored, shape=tensor.stored.shape[1:])
    return LazyTensor(stored, lambda: tensor.read().reshape(stored.shape))


def _joined(parts: list[LazyTensor]) -> LazyTensor:
    """Query, key and value, one after another along the first axis, as in c_attn."""
    first = parts[0].stored
    rows = sum(part.stored.shape[0] for part in parts)

    def read() -> mx.array:
        return mx.concatenate([part.read() for part in parts])

    return LazyTensor(replace(first, shape=(rows, *first.shape[1:])), read)
