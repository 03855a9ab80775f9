"""nanoGPT's and minGPT's models as their authors publish them, small: the oracle for their checkpoints.

The modules have the published names, so a `state_dict()` of these is a checkpoint of that kind. Dropout is left out.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class NewGELU(nn.Module):
    def forward(self, x: Any) -> Any:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class LayerNorm(nn.Module):
    """nanoGPT's, with a bias that can be left out."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Any) -> Any:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, width: int, n_head: int, n_positions: int, bias: bool, mask: bool) -> None:
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)
        if mask:
            self.register_buffer("bias", torch.tril(torch.ones(n_positions, n_positions))[None, None])

    def forward(self, x: Any) -> Any:
        B, T, C = x.shape
        q, k, v = (part.view(B, T, self.n_head, -1).transpose(1, 2) for part in self.c_attn(x).split(C, dim=2))
        return self.c_proj(attend(q, k, v).transpose(1, 2).reshape(B, T, C))


def attend(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])
    hidden = torch.triu(torch.ones(scores.shape[-2:], dtype=torch.bool), diagonal=1)
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


class Block(nn.Module):
    def __init__(self, width: int, n_head: int, n_positions: int, bias: bool, nano: bool) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(width, bias)
        self.attn = Attention(width, n_head, n_positions, bias, mask=not nano)
        self.ln_2 = LayerNorm(width, bias)
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(width, 4 * width, bias=bias), "c_proj": nn.Linear(4 * width, width, bias=bias)}
        )
        self.gelu = nn.GELU() if nano else NewGELU()

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["c_proj"](self.gelu(self.mlp["c_fc"](self.ln_2(x))))


class GPT(nn.Module):
    """nanoGPT's GPT (nano=True: exact GELU, head tied) or minGPT's (GELU by tanh, a head of its own, mask buffers)."""

    def __init__(
        self, vocab: int, n_positions: int, n_layer: int, n_head: int, width: int, bias: bool = True, nano: bool = True
    ) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocab, width),
                "wpe": nn.Embedding(n_positions, width),
                "h": nn.ModuleList([Block(width, n_head, n_positions, bias, nano) for _ in range(n_layer)]),
                "ln_f": LayerNorm(width, bias),
            }
        )
        self.lm_head = nn.Linear(width, vocab, bias=False)
        shake(self)
        if nano:
            self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, ids: Any) -> Any:
        x = self.transformer["wte"](ids) + self.transformer["wpe"](torch.arange(ids.shape[1]))
        for block in self.transformer["h"]:
            x = block(x)
        return self.lm_head(self.transformer["ln_f"](x))


class FirstAttention(nn.Module):
    def __init__(self, width: int, n_head: int, n_positions: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.key, self.query, self.value, self.proj = (nn.Linear(width, width) for _ in range(4))
        self.register_buffer("mask", torch.tril(torch.ones(n_positions, n_positions))[None, None])

    def forward(self, x: Any) -> Any:
        B, T, C = x.shape
        q, k, v = (layer(x).view(B, T, self.n_head, -1).transpose(1, 2) for layer in (self.query, self.key, self.value))
        return self.proj(attend(q, k, v).transpose(1, 2).reshape(B, T, C))


class FirstBlock(nn.Module):
    def __init__(self, width: int, n_head: int, n_positions: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = FirstAttention(width, n_head, n_positions)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class FirstGPT(nn.Module):
    """minGPT of 2020."""

    def __init__(self, vocab: int, n_positions: int, n_layer: int, n_head: int, width: int) -> None:
        super().__init__()
        self.tok_emb = nn.Embedding(vocab, width)
        self.pos_emb = nn.Parameter(torch.zeros(1, n_positions, width))
        self.blocks = nn.Sequential(*[FirstBlock(width, n_head, n_positions) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        shake(self)

    def forward(self, ids: Any) -> Any:
        x = self.tok_emb(ids) + self.pos_emb[:, : ids.shape[1]]
        return self.head(self.ln_f(self.blocks(x)))


def shake(model: nn.Module, seed: int = 0) -> None:
    """Weights that make every part count."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            norm = name.rpartition(".")[0].endswith(("ln_1", "ln_2", "ln_f", "ln1", "ln2"))
            if norm and name.endswith("weight"):
                parameter.copy_(1 + 0.2 * noise)
            else:
                parameter.copy_(noise * (1.2 / math.sqrt(parameter.shape[-1]) if parameter.dim() == 2 else 0.3))


def logits(model: nn.Module, ids: list[int]) -> Any:
    torch.set_num_threads(1)
    with torch.no_grad():
        return model(torch.tensor([ids]))[0].numpy()  # [n, V]
