"""GPT-2's decoder (Radford et al., 2019): each position attends to itself and to the positions before it.

Shapes: B rows, L positions, D = n_embd, H = n_head, V = vocab_size. The blocks work on [B * L, D], so that matrix
products need no reshaping. Parameters have GPT-2's published names under `model.`, and every weight is [out, in]: the
same as in a GPT-2 that mlx-lm has converted.

The blocks compute in the type of their weights. The final LayerNorm and the head compute in float32 whatever the
weights are, so that logits are not rounded to 16 bits: between 64 and 128, neighbouring bfloat16 numbers are 0.5 apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn

from mlxgen.errors import ContextError
from mlxgen.network.activations import activation
from mlxgen.network.cpu_kernels import attention
from mlxgen.network.layer_norm import LayerNorm, WatchfulLayerNorm
from mlxgen.network.pair_cache import split_pair

if TYPE_CHECKING:
    from mlxgen.network.config import GPT2Config


class Attention(nn.Module):
    """Multi-head causal self-attention over the cached keys and values."""

    def __init__(self, config: GPT2Config, layer: int) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.upcast = config.reorder_and_upcast_attn
        self.scale = config.head_dim**-0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            self.scale /= layer + 1
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def project(self, x: mx.array, B: int) -> tuple[mx.array, mx.array]:
        """The queries [B, H, L, D/H], and the keys and values as one array [B, 2 H, L, D/H]."""
        BL, D = x.shape
        heads = self.c_attn(x).reshape(B, BL // B, 3 * self.n_head, D // self.n_head).transpose(0, 2, 1, 3)
        q, pair = mx.split(heads, [self.n_head], axis=1)
        return q, pair

    def __call__(self, x: mx.array, B: int, mask: Any, cache: Any) -> mx.array:
        q, pair = self.project(x, B)
        k, v = remember(cache, pair)
        if self.upcast:
            q, k, v = (part.astype(mx.float32) for part in (q, k, v))
        out = attention(q, k, v, scale=self.scale, mask=mask)
        return self.c_proj(out.astype(x.dtype).transpose(0, 2, 1, 3).reshape(x.shape))


def remember(cache: Any, pair: mx.array) -> tuple[mx.array, mx.array]:
    """Add keys and values [B, 2 H, L, D/H] to a cache; returns all that may be read, each [B, H, positions, D/H]."""
    if hasattr(cache, "update_pair"):  # mlxgen's caches take both in one piece
        return split_pair(cache.update_pair(pair))
    k, v = split_pair(pair)
    return (k, v) if cache is None else cache.update_and_fetch(k, v)


class MLP(nn.Module):
    """The feed-forward network of a block: two linear layers with the activation between them."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, config.n_inner)
        self.c_proj = nn.Linear(config.n_inner, config.n_embd)
        self._activation = activation(config.activation_function)

    def __call__(self, x: mx.array) -> mx.array:
        return self.c_proj(self._activation(self.c_fc(x)))


class Block(nn.Module):
    """A pre-norm block: attention and the MLP each read a LayerNorm of the residual stream and add to it."""

    def __init__(self, config: GPT2Config, layer: int) -> None:
        super().__init__()
        norm = WatchfulLayerNorm if layer == config.n_layer - 1 else LayerNorm
        self.ln_1 = norm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = Attention(config, layer)
        self.ln_2 = LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def __call__(self, x: mx.array, B: int = 1, mask: Any = None, cache: Any = None) -> mx.array:
        x = x + self.attn(self.ln_1(x), B, mask, cache)
        return x + self.mlp(self.ln_2(x))


class Trunk(nn.Module):
    """Everything below the output head. `h` is GPT-2's name for the list of blocks."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.h = [Block(config, layer) for layer in range(config.n_layer)]
        self.ln_f = WatchfulLayerNorm(config.n_embd, eps=config.layer_norm_epsilon)


class GPT2(nn.Module):
    """GPT-2 with its output head: `decoder(ids)` with ids [B, L] gives logits [B, L, V].

    cache: one entry per layer, each an object with mlx-lm's cache protocol (ours or mlx-lm's); updated in place. What a
    cache returns must end with the positions of this pass.
    Raises ContextError if a position past the table of n_positions would be read. With one offset per row (batches)
    the caller has to check this: positions past the table then read its last vector.
    """

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self._config = config
        self.model = Trunk(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    @property
    def config(self) -> GPT2Config:
        return self._config

    @property
    def compute_dtype(self) -> mx.Dtype:
        """The type that the blocks compute in, and the caches hold."""
        return self.model.ln_f.bias.dtype

    @property
    def layers(self) -> list[Block]:
        return self.model.h

    def __call__(self, ids: mx.array, cache: Sequence[Any] | None = None) -> mx.array:
        return self.head(self.hidden(ids, cache))

    def hidden(self, ids: mx.array, cache: Sequence[Any] | None = None) -> mx.array:
        """The last hidden states, after the final LayerNorm: ids [B, L] -> float32 [B, L, D]."""
        B, L = ids.shape
        first = cache[0] if cache else None
        positions = self._positions(L, 0 if first is None else first.offset)
        mask = "causal" if L > 1 else None
        if first is not None:
            mask = first.make_mask(L, return_array=False, window_size=None)
        x = self.embed(ids, positions).reshape(B * L, -1)
        for layer, block in enumerate(self.model.h):
            x = block(x, B, mask, cache[layer] if cache else None)
        return self.final_norm(x).reshape(B, L, -1)

    def embed(self, ids: mx.array, positions: mx.array) -> mx.array:
        """The first block's input: the embeddings of ids [..., L] and positions [..., L], added up."""
        places = self.model.wpe(positions)
        return self.model.wte(ids).astype(places.dtype) + places  # a tied embedding may be float32, for the head

    def final_norm(self, x: mx.array) -> mx.array:
        """The final LayerNorm of the last block's output [..., D], in float32."""
        return self.model.ln_f(x.astype(mx.float32))

    def head(self, hidden: mx.array) -> mx.array:
        """Map hidden states [..., D] to float32 logits [..., V]. A tied head uses the word embedding."""
        hidden = hidden.astype(mx.float32)
        return self.model.wte.as_linear(hidden) if self.config.tie_word_embeddings else self.lm_head(hidden)

    def _positions(self, L: int, offset: int | mx.array) -> mx.array:
        size = self.config.n_positions
        if isinstance(offset, mx.array):  # one offset per row, negative in rows padded on the left
            if offset.ndim == 2:  # the positions themselves [B, L]
                return offset
            return mx.clip(offset[:, None] + mx.arange(L), 0, size - 1)
        if offset + L > size:
            raise ContextError(
                f"position {offset + L - 1} is past the model's table of {size} positions;"
                ' use overflow="slide" to continue past its end'
            )
        return mx.arange(offset, offset + L)
