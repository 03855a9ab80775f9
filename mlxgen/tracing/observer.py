"""Watchers of the loop: the real decoder and chooser, which also write down what passes through them.

They wait for the device after each stage, so that its time can be told; nothing else about the loop changes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from mlxgen.generation.session import Session
from mlxgen.network.decoder import GPT2
from mlxgen.sampling.chooser import Choice, Chooser, Guess
from mlxgen.sampling.samplers import rules
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
from mlxgen.tracing.statistics import Row, entropy, random_number, rest_of, row, softmax, token_text


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of one choice, before the loop made a step of it."""

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


class WatchedDecoder:
    """The decoder itself, timed. unwatched: without the clock; newest: the last processed position's ids [1, 1]."""

    def __init__(self, decoder: GPT2) -> None:
        self.unwatched = decoder
        self.newest: mx.array | None = None
        self.hidden_seconds = self.head_seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unwatched, name)

    def hidden(self, ids: mx.array, cache: Sequence[Any] | None = None) -> mx.array:
        began = time.perf_counter()
        hidden = self.unwatched.hidden(ids, cache)
        mx.eval(hidden)
        self.hidden_seconds += time.perf_counter() - began
        self.newest = ids[:, -1:]
        return hidden

    def head(self, hidden: mx.array) -> mx.array:
        began = time.perf_counter()
        logits = self.unwatched.head(hidden)
        mx.eval(logits)
        self.head_seconds += time.perf_counter() - began
        return logits

    def take_seconds(self) -> tuple[float, float]:
        """The time in the layers and in the head since the last call."""
        seconds = self.hidden_seconds, self.head_seconds
        self.hidden_seconds = self.head_seconds = 0.0
        return seconds


class WatchedChooser(Chooser):
    """The chooser itself, which keeps the logits between its rules and the cache as it then was."""

    def __init__(
        self,
        *args: Any,
        session: Session,
        top: int,
        lens: bool,
        heads: Sequence[tuple[int, int]],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._session, self._top_n, self._lens, self._heads = session, top, lens, heads
        self._decoder: Any = session.model.decoder
        self._cache_length = self._processed = self._slides = 0
        self._adjusted: mx.array | None = None
        self._key_used: mx.array | None = None
        self.seen: list[Seen] = []
        self.ended = time.perf_counter()

    def __call__(self, logits: mx.array, guess: Guess | None = None) -> Choice:
        transformer, head = self._decoder.take_seconds()
        self._key_used = None
        began = time.perf_counter()
        choice = super().__call__(logits, guess)
        mx.eval(choice.token, choice.logprob, choice.finite)
        seconds = (transformer, head, time.perf_counter() - began)
        if choice.finite.item():  # else the loop will say so
            self.seen.append(self._look(logits, choice, seconds))
        self.ended = time.perf_counter()
        return choice

    def _adjust(self, logits: mx.array) -> mx.array:
        self._adjusted = super()._adjust(logits)
        return self._adjusted

    def _next_key(self) -> mx.array:
        self._key_used = super()._next_key()
        return self._key_used

    def _look(self, logits: mx.array, choice: Choice, seconds: tuple[float, float, float]) -> Seen:
        assert self._adjusted is not None
        session, chosen = self._session, int(np.array(choice.token)[0])
        processed = session.processed - self._processed
        cache = self._cache_state()
        raw, adjusted = row(logits), row(self._adjusted)
        effects, stages = self._stages(raw, adjusted)
        ruled = stages[-1][1]
        tempered = next((after for name, after in stages if name == "temperature"), adjusted)
        order = np.argsort(-adjusted, kind="stable")
        top = [int(token) for token in order[: self._top_n] if np.isfinite(adjusted[token])]
        top += [] if chosen in top else [chosen]
        p, tempered_p, rule_p = softmax(raw), softmax(tempered), softmax(ruled)
        tokenizer = session.model.tokenizer
        candidates = [
            TracedCandidate(
                token=token,
                text=token_text(tokenizer, token),
                logit=float(raw[token]),
                adjusted=float(adjusted[token]),
                probability=float(p[token]),
                tempered=float(tempered_p[token]),
                rule_probability=float(rule_p[token]),
                cut_by=next((name for name, after in stages if not np.isfinite(after[token])), None),
            )
            for token in top
        ]
        end = float(rule_p[: chosen + 1].sum())
        interval = (end - float(rule_p[chosen]), end)
        lens, attention = look_inside(
            session, self._decoder.unwatched, self._decoder.newest, chosen, self._lens, self._heads
        )
        return Seen(
            processed=processed,
            context_length=session.processed,
            cache=cache,
            lens=lens,
            attention=attention,
            entropy=entropy(p),
            rule_entropy=entropy(rule_p),
            candidates=candidates,
            rest=rest_of(adjusted, p, rule_p, top),
            rules=effects,
            key=None if self._key_used is None else [int(word) for word in np.array(self._key_used)],
            random=random_number(self._key_used),
            interval=interval,
            chosen=chosen,
            rank=1 + int((raw > raw[chosen]).sum() + (raw[:chosen] == raw[chosen]).sum()),
            rule_probability=float(rule_p[chosen]),
            transformer_seconds=seconds[0],
            logits_seconds=seconds[1],
            sample_seconds=seconds[2],
        )

    def _stages(self, raw: Row, adjusted: Row) -> tuple[list[RuleEffect], list[tuple[str, Row]]]:
        """Each rule's effect, and the logits after it: the chooser's own rules, one after another."""
        effects, stages = [], [("adjust", adjusted)]
        if not np.array_equal(raw, adjusted):
            kept = np.isfinite(adjusted)
            effects.append(RuleEffect("adjust", None, int(kept.sum()), float(softmax(raw)[kept].sum())))
        assert self._adjusted is not None
        after = self._adjusted
        for name, value, rule in rules(self._sampling):
            before, after = softmax(stages[-1][1]), rule(after, value)
            stages.append((name, row(after)))
            kept = np.isfinite(stages[-1][1])
            effects.append(RuleEffect(name, float(value), int(kept.sum()), float(before[kept].sum())))
        return effects, stages

    def _cache_state(self) -> CacheState:
        session = self._session
        cache, held = session.cache[0], sorted(held_tokens(session))
        state = CacheState(
            layers=len(session.cache),
            before=self._cache_length,
            after=session.cache_length,
            held=spans(held),
            dropped=spans(sorted(set(range(session.processed)) - set(held))),
            pinned=min(session.keep, len(held)) if session.keep else 0,
            slid=session.slides > self._slides,
            layer_bytes=cache.nbytes // max(cache.state[0].shape[2], 1) * len(held),
            allocated_bytes=sum(layer.nbytes for layer in session.cache),
        )
        self._cache_length, self._processed, self._slides = session.cache_length, session.processed, session.slides
        return state
