"""The observer of a traced answer: it records every stage of the loop.

It waits for the device after each stage, to measure how long the stage takes. Otherwise the loop runs as usual.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlxgen.generation.cached_context import CachedContext
from mlxgen.sampling.chooser import Choice
from mlxgen.sampling.samplers import Sampling, rules
from mlxgen.tracing.lens import held_tokens, look_inside
from mlxgen.tracing.record import (
    CacheState,
    HeadAttention,
    LensEntry,
    Rest,
    RuleEffect,
    TracedCandidate,
    spans,
)
from mlxgen.tracing.statistics import Vector, entropy, random_number, rest_of, softmax, to_float64


@dataclass(frozen=True, slots=True)
class Observation:
    """The record of one choice, made before the loop turns it into a step."""

    processed: int
    context_length: int
    cache: CacheState
    lens: list[LensEntry]
    attention: list[HeadAttention]
    entropy: float
    rule_entropy: float
    candidates: list[TracedCandidate]
    rest: Rest
    rules: list[RuleEffect]
    key: list[int] | None
    random: float | None
    interval: tuple[float, float]
    chosen: int
    rank: int
    rule_probability: float
    transformer_seconds: float
    logits_seconds: float
    sample_seconds: float


class TraceObserver:
    """Records each choice of an answer; see mlxgen.generation.observer for the methods.

    top: how many candidates to keep. lens: whether to compute the logit lens. heads: the (layer, head) pairs whose
    attention to record. observations: one entry per choice. ended: the time at which the newest choice was made.
    """

    def __init__(self, sampling: Sampling, *, top: int, lens: bool, heads: Sequence[tuple[int, int]]) -> None:
        self._sampling, self._top, self._lens, self._heads = sampling, top, lens, heads
        self._newest: mx.array | None = None  # the last processed position's ids [1, 1]
        self._cache_length = self._processed = self._slides = 0
        self._layers_seconds = self._head_seconds = 0.0  # since the last choice
        self._clock = 0.0  # when the current stage began
        self.observations: list[Observation] = []
        self.ended = time.perf_counter()

    def before_layers(self, ids: mx.array) -> None:
        self._newest, self._clock = ids[:, -1:], time.perf_counter()

    def after_layers(self, hidden: mx.array) -> None:
        self._layers_seconds += self._lap(hidden)

    def after_head(self, logits: mx.array) -> None:
        self._head_seconds += self._lap(logits)

    def after_choice(
        self,
        context: CachedContext,
        logits: mx.array,
        adjusted: dict[str, mx.array],
        key: mx.array | None,
        choice: Choice,
    ) -> None:
        seconds = (self._layers_seconds, self._head_seconds, self._lap(*choice.arrays))
        self._layers_seconds = self._head_seconds = 0.0
        if choice.finite.item():  # otherwise the loop raises an error
            self.observations.append(self._observe(context, logits, adjusted, key, choice, seconds))
        self.ended = time.perf_counter()

    def _lap(self, *arrays: mx.array) -> float:
        """Wait for the arrays; returns the seconds since the last stage ended."""
        mx.eval(*arrays)
        began, self._clock = self._clock, time.perf_counter()
        return self._clock - began

    def _observe(
        self,
        context: CachedContext,
        logits: mx.array,
        adjusted_logits: dict[str, mx.array],
        key: mx.array | None,
        choice: Choice,
        seconds: tuple[float, float, float],
    ) -> Observation:
        chosen = int(np.array(choice.token)[0])
        processed = context.processed - self._processed
        cache = self._cache_state(context)
        raw = to_float64(logits)
        effects, stages = self._stages(raw, adjusted_logits)
        adjusted, ruled = stages["adjust"], next(reversed(stages.values()))
        allowed = stages[next(reversed(adjusted_logits))]  # after the bans
        tempered = stages.get("temperature", allowed)
        order = np.argsort(-adjusted, kind="stable")
        top = [int(token) for token in order[: self._top] if np.isfinite(adjusted[token])]
        top += [] if chosen in top else [chosen]
        p, tempered_p, rule_p = softmax(raw), softmax(tempered), softmax(ruled)
        tokenizer = context.model.tokenizer
        candidates = [
            TracedCandidate(
                token=token,
                text=tokenizer.token_text(token),
                logit=float(raw[token]),
                adjusted=float(adjusted[token]),
                probability=float(p[token]),
                tempered=float(tempered_p[token]),
                rule_probability=float(rule_p[token]),
                cut_by=next((name for name, after in stages.items() if not np.isfinite(after[token])), None),
            )
            for token in top
        ]
        end = float(rule_p[: chosen + 1].sum())
        interval = (end - float(rule_p[chosen]), end)
        lens, attention = look_inside(context, self._newest, chosen, self._lens, self._heads)
        return Observation(
            processed=processed,
            context_length=context.processed,
            cache=cache,
            lens=lens,
            attention=attention,
            entropy=entropy(p),
            rule_entropy=entropy(rule_p),
            candidates=candidates,
            rest=rest_of(allowed, p, rule_p, top),
            rules=effects,
            key=None if key is None else [int(word) for word in np.array(key)],
            random=random_number(key),
            interval=interval,
            chosen=chosen,
            rank=1 + int((raw > raw[chosen]).sum() + (raw[:chosen] == raw[chosen]).sum()),
            rule_probability=float(rule_p[chosen]),
            transformer_seconds=seconds[0],
            logits_seconds=seconds[1],
            sample_seconds=seconds[2],
        )

    def _stages(self, raw: Vector, adjusted: dict[str, mx.array]) -> tuple[list[RuleEffect], dict[str, Vector]]:
        """Apply the chooser's rules one by one; returns the effect of each, if it has one, and the logits after it."""
        effects: list[RuleEffect] = []
        stages: dict[str, Vector] = {}
        before = raw
        for name, logits in adjusted.items():
            after = stages[name] = to_float64(logits)
            if not np.array_equal(before, after):
                effects.append(_effect(name, getattr(self._sampling, name, None), before, after))
            before = after
        for name, value, rule in rules(self._sampling):
            logits = rule(logits, value)
            after = stages[name] = to_float64(logits)
            effects.append(_effect(name, value, before, after))
            before = after
        return effects, stages

    def _cache_state(self, context: CachedContext) -> CacheState:
        cache, held = context.cache[0], sorted(held_tokens(context))
        state = CacheState(
            layers=len(context.cache),
            before=self._cache_length,
            after=context.cache_length,
            held=spans(held),
            dropped=spans(sorted(set(range(context.processed)) - set(held))),
            pinned=min(context.slide_keep, len(held)),
            slid=context.slides > self._slides,
            layer_bytes=cache.nbytes // max(cache.state[0].shape[2], 1) * len(held),
            allocated_bytes=sum(layer.nbytes for layer in context.cache),
        )
        self._cache_length, self._processed, self._slides = context.cache_length, context.processed, context.slides
        return state


def _effect(name: str, value: object, before: Vector, after: Vector) -> RuleEffect:
    kept = np.isfinite(after)
    number = float(value) if isinstance(value, int | float) else None  # lists of words and tokens have none
    return RuleEffect(name, number, int(kept.sum()), float(softmax(before)[kept].sum()))
