"""Independent ways to the same numbers: GPT-2 in float64 NumPy, the rule of sliding, transformers' loops.

Nothing here uses the code it checks, but for GPT2Config's fields and the decoder's parameter names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = Any  # a NumPy array, or a torch tensor

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


def ruled(
    logits: Array,
    temperature: float = 1,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Array:
    """The probabilities that the sampling rules leave of one row of logits: float64 [V], summing to one."""
    x = np.asarray(logits, dtype=np.float64) / temperature
    kept = np.ones(len(x), dtype=bool)
    order = np.argsort(-x, kind="stable")  # ties go to the lower token id
    if top_k is not None:
        kept[order[top_k:]] = False
    if top_p is not None:
        p = softmax(np.where(kept, x, -np.inf))[order]
        kept[order[np.cumsum(p) - p >= top_p]] = False
    if min_p is not None:
        p = softmax(np.where(kept, x, -np.inf))
        kept &= p >= min_p * p.max()
    return softmax(np.where(kept, x, -np.inf))


def chi_square(counts: Array, probabilities: Array) -> float:
    """How far counts are from what the probabilities make one expect; its degrees of freedom are one fewer."""
    expected = np.sum(counts) * np.asarray(probabilities, dtype=np.float64)
    return float(((np.asarray(counts) - expected) ** 2 / expected).sum())


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


def slid_context(tokens: Sequence[int], n_positions: int, keep: int = 0) -> list[int]:
    """The rule of sliding, one token after another: what stands at positions 0, 1, … once all tokens are processed.

    Where the table is full and one more token comes, the first `keep` and the newest n_positions // 2 - keep stay.
    """
    context: list[int] = []
    for done, token in enumerate(tokens):
        if len(context) == n_positions:
            context = [*tokens[:keep], *tokens[done - (n_positions // 2 - keep) : done]]
        context.append(token)
    return context


def numpy_greedy(
    model: Any, prompt: Sequence[int], n: int, max_size: int | None = None, keep: int = 0, slide: bool = False
) -> list[int]:
    """Greedy tokens: every step one whole pass over the whole context, or over what sliding leaves of it."""
    weights, context = parameters(model.decoder), list(prompt)
    for _ in range(n):
        read = slid_context(context, model.config.n_positions, keep) if slide else context
        logits = numpy_logits(weights, model.config, read, max_size, keep)
        context.append(int(logits[-1].argmax()))
    return context[len(prompt) :]


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


def torch_perplexity(model: Any, ids: Sequence[int], stride: int) -> tuple[float, int]:
    """Perplexity by the loop of transformers' guide, over windows of the whole table; and how many tokens it scored."""
    import torch

    total, count, previous, size = 0.0, 0, 0, model.config.n_positions
    for begin in range(0, len(ids), stride):
        end = min(begin + size, len(ids))
        inputs = torch.tensor([list(ids[begin:end])])
        targets = inputs.clone()
        targets[:, : -(end - previous)] = -100
        scored = int((targets[:, 1:] != -100).sum())  # the labels are shifted inside
        if scored:
            with torch.no_grad():
                total += float(model(inputs, labels=targets).loss) * scored
            count += scored
        previous = end
        if end == len(ids):
            break
    return math.exp(total / count), count
