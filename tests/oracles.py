"""Independent ways to the same numbers: GPT-2 in float64 NumPy, transformers' checkpoints, a plain greedy loop.

Nothing here uses the code it checks, but for GPT2Config's fields and the decoder's parameter names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = Any  # a NumPy array, or a torch tensor

END = "<|endoftext|>"
LAYOUTS = ("bare", "transformer.", "model.")
PRODUCTS = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")

erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(x / 2))


def gelu_by_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {
    "gelu_new": gelu_by_tanh,
    "gelu_pytorch_tanh": gelu_by_tanh,
    "gelu_fast": gelu_by_tanh,
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * sigmoid(x),
    "swish": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
}


def softmax(x: Array) -> Array:
    shifted = np.exp(x - x.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def log_softmax(x: Array) -> Array:
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def written_mask(n: int, max_size: int | None = None, keep: int = 0) -> Array:
    """Which position (column) each query (row) reads: bool [n, n]."""
    mask = np.zeros((n, n), dtype=bool)
    for i in range(n):
        for j in range(i + 1):
            mask[i, j] = max_size is None or j < keep or j > i - (max_size - keep)
    return mask


def parameters(decoder: Any) -> dict[str, Array]:
    """A decoder's weights as float64 NumPy arrays, by name."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    return {
        name: np.array(array.astype(mx.float32)).astype(np.float64)
        for name, array in tree_flatten(decoder.parameters())
    }


def numpy_logits(
    weights: dict[str, Array], config: Any, ids: Sequence[int], max_size: int | None = None, keep: int = 0
) -> Array:
    """One forward pass over the whole context, float64 [n, V]. Weights by the decoder's names, [out, in]."""
    n, D, H = len(ids), config.n_embd, config.n_head
    mask = written_mask(n, max_size, keep)
    activation = ACTIVATIONS[config.activation_function]

    def norm(x: Array, name: str) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + config.layer_norm_epsilon)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(x: Array, name: str) -> Array:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    x = weights["model.wte.weight"][list(ids)] + weights["model.wpe.weight"][:n]  # [n, D]
    for layer in range(config.n_layer):
        at = f"model.h.{layer}"
        qkv = linear(norm(x, f"{at}.ln_1"), f"{at}.attn.c_attn")  # [n, 3 D]
        q, k, v = (part.reshape(n, H, D // H).transpose(1, 0, 2) for part in np.split(qkv, 3, axis=-1))
        scores = q @ k.transpose(0, 2, 1)  # [H, n, n]
        if config.scale_attn_weights:
            scores = scores / math.sqrt(D // H)
        if config.scale_attn_by_inverse_layer_idx:
            scores = scores / (layer + 1)
        read = softmax(np.where(mask, scores, -np.inf)) @ v  # [H, n, D/H]
        x = x + linear(read.transpose(1, 0, 2).reshape(n, D), f"{at}.attn.c_proj")
        x = x + linear(activation(linear(norm(x, f"{at}.ln_2"), f"{at}.mlp.c_fc")), f"{at}.mlp.c_proj")
    head = "model.wte.weight" if config.tie_word_embeddings else "lm_head.weight"
    return norm(x, "model.ln_f") @ weights[head].T


def numpy_greedy(model: Any, prompt: Sequence[int], n: int, max_size: int | None = None, keep: int = 0) -> list[int]:
    """Greedy tokens: every step one whole pass over the whole context."""
    weights, context = parameters(model.decoder), list(prompt)
    for _ in range(n):
        logits = numpy_logits(weights, model.config, context, max_size, keep)
        context.append(int(logits[-1].argmax()))
    return context[len(prompt) :]


def random_weights(config: Any, seed: int = 0) -> dict[str, Array]:
    """Weights that make attention sharp, every bias matter and logits well apart: float32, decoder's names."""
    rng = np.random.default_rng(seed)
    D, inner = config.n_embd, config.n_inner

    def normal(std: float, *shape: int) -> Array:
        return (std * rng.standard_normal(shape)).astype(np.float32)

    wide = 1.5 / math.sqrt(D)
    weights = {
        "model.wte.weight": normal(0.5, config.vocab_size, D),
        "model.wpe.weight": normal(0.5, config.n_positions, D),
    }
    norms = ["model.ln_f"]
    for layer in range(config.n_layer):
        at = f"model.h.{layer}"
        norms += [f"{at}.ln_1", f"{at}.ln_2"]
        products = {
            "attn.c_attn": (3 * D, D, wide),
            "attn.c_proj": (D, D, 0.5 / math.sqrt(D)),
            "mlp.c_fc": (inner, D, wide),
            "mlp.c_proj": (D, inner, 0.5 / math.sqrt(inner)),
        }
        for name, (rows, columns, std) in products.items():
            weights[f"{at}.{name}.weight"] = normal(std, rows, columns)
            weights[f"{at}.{name}.bias"] = normal(0.2, rows)
    for name in norms:
        weights[f"{name}.weight"] = 1 + normal(0.2, D)
        weights[f"{name}.bias"] = normal(0.2, D)
    if not config.tie_word_embeddings:
        weights["lm_head.weight"] = normal(0.5, config.vocab_size, D)
    return weights


def published(weights: dict[str, Array], layout: str) -> dict[str, Array]:
    """The same weights under a published layout's names, with the products as [in, out] where it has them so."""
    if layout == "model.":
        return dict(weights)
    prefix = "" if layout == "bare" else layout
    named = {}
    for name, array in weights.items():
        stored = np.ascontiguousarray(array.T) if name.endswith(PRODUCTS) else array
        named[name if name == "lm_head.weight" else prefix + name.removeprefix("model.")] = stored
    if layout == "bare":  # the mask buffers of OpenAI's files
        for name in [name for name in named if name.endswith("attn.c_attn.bias")]:
            named[name.replace("c_attn.bias", "bias")] = np.tril(np.ones((1, 1, 8, 8), dtype=np.float32))
    return named


def torch_model(config: dict[str, Any], weights: dict[str, Array]) -> Any:
    """transformers' GPT-2 with these weights, float32, attention written out."""
    import torch
    import transformers

    torch.set_num_threads(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config, attn_implementation="eager"))
    state = {name: torch.tensor(array) for name, array in published(weights, "transformer.").items()}
    state.setdefault("lm_head.weight", state["transformer.wte.weight"])
    model.load_state_dict(state, strict=True)
    return model.eval()


def torch_logits(model: Any, ids: Sequence[int]) -> Array:
    import torch

    with torch.no_grad():
        return model(torch.tensor([list(ids)])).logits[0].numpy()  # [n, V]


def torch_greedy(model: Any, ids: Sequence[int], n: int, end: int | None = None) -> list[int]:
    """The plain loop: one pass over the prompt, then one token at a time with past_key_values."""
    import torch

    chosen: list[int] = []
    past, feed = None, torch.tensor([list(ids)])
    with torch.no_grad():
        while len(chosen) < n:
            out = model(feed, past_key_values=past, use_cache=True)
            past, token = out.past_key_values, int(out.logits[0, -1].argmax())
            chosen.append(token)
            if token == end:
                break
            feed = torch.tensor([[token]])
    return chosen


def write_folder(
    folder: Path, config: dict[str, Any], weights: dict[str, Array], tokenizer: Any, layout: str = "transformer."
) -> Path:
    """A model folder with these weights in a published layout. tokenizer: of the tokenizers library."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **config}))
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(published(weights, layout), str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder


def byte_tokenizer() -> Any:
    """A small byte-level BPE of the tokenizers library: 256 bytes, some merges, and the end token last."""
    import tokenizers
    from tokenizers.pre_tokenizers import ByteLevel

    pieces = sorted(ByteLevel.alphabet())
    merges = []
    for word in ("Ġthe", "Ġand", "Ġfar", "Ġonce", "Ġking", "Ġfrog", "Far", "away"):
        made = word[0]
        for piece in word[1:]:
            if made + piece not in pieces:
                merges.append((made, piece))
                pieces.append(made + piece)
            made += piece
    vocab = {piece: number for number, piece in enumerate(pieces)}
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges))
    library.pre_tokenizer = ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    library.add_special_tokens([END])
    return library
