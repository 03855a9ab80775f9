"""A look inside the network: the tokens in the cache, and each layer's prediction and attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from mlxgen.generation.cached_context import CachedContext
from mlxgen.tracing.record import HeadAttention, LensEntry
from mlxgen.tracing.statistics import softmax, to_float64


class ReadOnly:
    """A view of a layer's cache that already holds the newest position: it adds nothing to it."""

    def __init__(self, cache: Any) -> None:
        keys, values = cache.state[:2]
        self.keys, self.values = (part[..., : cache.size(), :] for part in (keys, values))

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return self.keys, self.values


def look_inside(
    context: CachedContext,
    newest: mx.array | None,
    chosen: int,
    lens: bool,
    heads: Sequence[tuple[int, int]],
) -> tuple[list[LensEntry], list[HeadAttention]]:
    """Compute the logit lens, and the attention of the given (layer, head) pairs, at the newest position."""
    entries: list[LensEntry] = []
    rows: list[HeadAttention] = []
    if newest is None or not (lens or heads):
        return entries, rows
    decoder, tokenizer = context.model.decoder, context.model.tokenizer
    in_order = np.argsort(held_tokens(context))
    x = decoder.embed(newest[0], mx.array([context.cache[0].offset - 1]))  # [1, D]
    for layer, block in enumerate(decoder.layers):
        cache = ReadOnly(context.cache[layer])
        wanted = [head for at, head in heads if at == layer]
        if wanted:
            q, _ = block.attn.project(block.ln_1(x), 1)  # [1, H, 1, D/H]
            scores = q.astype(mx.float32) @ cache.keys.astype(mx.float32).transpose(0, 1, 3, 2) * block.attn.scale
            weights = np.array(mx.softmax(scores, axis=-1))[0, :, 0]  # [H, positions in the cache]
            rows += [HeadAttention(layer, head, weights[head][in_order].tolist()) for head in wanted]
        x = block(x, cache=cache)
        if lens:
            p = softmax(to_float64(decoder.head(decoder.final_norm(x))))
            best = int(p.argmax())
            entries.append(LensEntry(layer, best, tokenizer.token_text(best), float(p[best]), float(p[chosen])))
    return entries, rows


def held_tokens(context: CachedContext) -> list[int]:
    """The index in the context of the token in each slot of the cache, in the order of the slots."""
    cache, slide = context.cache[0], context.slide
    rebuilt = [] if slide is None else [*range(slide.keep), *range(slide.start, slide.at)]
    behind = (
        context.processed - cache.offset
    )  # how much larger a token's index in the context is than its position in the cache
    return [rebuilt[at] if at < len(rebuilt) else at + behind for at in slot_positions(cache)]


def slot_positions(cache: Any) -> list[int]:
    """The position in each slot of a cache, in the order of the slots. In a full ring they are not sorted."""
    max_size = getattr(cache, "max_size", None)
    if max_size is None or cache.offset <= max_size:
        return list(range(cache.offset))
    keep, after_newest = cache.keep, cache.state[5]
    ages = [(after_newest - 1 - slot) % (max_size - keep) for slot in range(keep, max_size)]
    return [*range(keep), *(cache.offset - 1 - age for age in ages)]
