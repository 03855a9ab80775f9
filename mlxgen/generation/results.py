"""What an answer was: its text and tokens, and what they took."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from mlxgen.generation.loop import Candidate, FinishReason, Step


@dataclass(frozen=True, slots=True)
class Generation:
    """What one request gave.

    text: the answer alone, without the prompt, the end token or a stop text. tokens: all chosen ids, an end token
    included. logprobs: natural logs under the model itself, one a token; their sum is the log-probability of the
    answer. Seconds are wall time; peak_memory is in bytes, of MLX's arrays. guesses: tokens guessed by lookahead or a
    draft model and checked; accepted: those that were right.
    """

    prompt: str | list[int]
    prompt_tokens: list[int] = field(repr=False)
    text: str
    tokens: list[int] = field(repr=False)
    logprobs: list[float] = field(repr=False)
    candidates: list[tuple[Candidate, ...]] = field(repr=False)
    finish_reason: FinishReason
    seed: int
    prompt_seconds: float
    generation_seconds: float
    peak_memory: int
    guesses: int
    accepted: int

    @property
    def tokens_per_pass(self) -> float:
        """Tokens that a pass through the network gave: 1 without guesses."""
        return len(self.tokens) / (len(self.tokens) - self.accepted) if self.tokens else 0.0

    @property
    def prompt_tps(self) -> float:
        """Prompt tokens per second, up to the first chosen token."""
        return len(self.prompt_tokens) / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def generation_tps(self) -> float:
        """Tokens per second after the first one."""
        return max(len(self.tokens) - 1, 0) / self.generation_seconds if self.generation_seconds else 0.0


class Recorder:
    """Collects a request's steps into a Generation. Made before the first step, so that it can time the prompt.

    alone: whether the peak of memory is measured from here on; requests at the same time share theirs.
    """

    def __init__(
        self, prompt: str | Sequence[int], prompt_tokens: Sequence[int], seed: int, *, alone: bool = True
    ) -> None:
        self._prompt = prompt if isinstance(prompt, str) else [int(token) for token in prompt]
        self._prompt_tokens, self._seed = list(prompt_tokens), seed
        self._steps: list[Step] = []
        self._start = self._first = self._last = time.perf_counter()
        if alone:
            mx.reset_peak_memory()

    def add(self, step: Step) -> None:
        self._last = time.perf_counter()
        if not self._steps:
            self._first = self._last
        self._steps.append(step)

    def finish(self) -> Generation:
        """The record so far; an interrupted answer counts as stopped."""
        reason = self._steps[-1].finish_reason or "stop" if self._steps else "context"
        return Generation(
            prompt=self._prompt,
            prompt_tokens=self._prompt_tokens,
            text="".join(step.text for step in self._steps),
            tokens=[step.token for step in self._steps],
            logprobs=[step.logprob for step in self._steps],
            candidates=[step.candidates for step in self._steps if step.candidates],
            finish_reason=reason,
            seed=self._seed,
            prompt_seconds=self._first - self._start,
            generation_seconds=self._last - self._first,
            peak_memory=mx.get_peak_memory(),
            guesses=sum(step.guesses for step in self._steps),
            accepted=sum(step.guessed for step in self._steps),
        )
