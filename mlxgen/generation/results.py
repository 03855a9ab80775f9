"""Results: candidates, steps, and the record of a whole answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import mlx.core as mx

from mlxgen.generation.request import Request
from mlxgen.text.excerpt import excerpt

FinishReason = Literal["stop", "length", "context"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that could have been chosen.

    probability: under the model itself. rule_probability: under the sampling rules, 0 if they removed the token.
    """

    token: int
    text: str
    probability: float
    rule_probability: float

    @property
    def kept(self) -> bool:
        return self.rule_probability > 0


@dataclass(frozen=True, slots=True)
class Step:
    """One chosen token.

    text: the text that this token completes. It is empty while a character or a possible stop text is incomplete, and
    for an end token. logprob: natural logarithm of the token's probability under the model itself. context_length:
    tokens in the context, this one included. cache_length: positions in the cache, one fewer than context_length until
    the cache rotates or slides. finish_reason: why this token is the last, or None. guessed: whether the token was
    guessed, and so needed no pass of its own. guesses: how many guesses a pass checked; only the step of the first
    guess of a pass has the number, the others have 0.
    """

    index: int
    token: int
    text: str
    logprob: float
    candidates: tuple[Candidate, ...]
    context_length: int
    cache_length: int
    finish_reason: FinishReason | None
    guessed: bool = False
    guesses: int = 0

    def __repr__(self) -> str:
        end = f", finish_reason={self.finish_reason!r}" if self.finish_reason else ""
        return f"Step({self.index}, token={self.token}, text={self.text!r}, logprob={self.logprob:.4f}{end})"


@dataclass(frozen=True, slots=True)
class Generation:
    """The record of an answer.

    text: the answer without the prompt, the end token or a stop text. tokens: all chosen ids, an end token included.
    logprobs: natural logarithm of each token's probability under the model itself; their sum is the
    log-probability of the answer. pieces: what became certain of the text with each token. prompt_seconds,
    generation_seconds: wall time. peak_memory: of MLX's arrays, in bytes. guesses: how many tokens were guessed (by
    lookahead or a draft model) and checked; accepted: how many of them were right.
    """

    prompt: str | list[int]
    prompt_tokens: list[int] = field(repr=False)
    text: str
    tokens: list[int] = field(repr=False)
    logprobs: list[float] = field(repr=False)
    pieces: list[str] = field(repr=False)
    candidates: list[tuple[Candidate, ...]] = field(repr=False)
    finish_reason: FinishReason
    seed: int
    prompt_seconds: float
    generation_seconds: float
    peak_memory: int
    guesses: int
    accepted: int

    def __repr__(self) -> str:
        n = len(self.tokens)
        return f"{type(self).__name__}({excerpt(self.text)}, tokens={n}, finish_reason={self.finish_reason!r})"

    def _repr_html_(self) -> str:
        """For notebooks: the text, with each token's probability and candidates on hover."""
        from mlxgen.generation.notebook import answer_html

        prompt = self.prompt if isinstance(self.prompt, str) else ""
        notes = ["\n".join(f"  {c.text!r} {100 * c.probability:.3g} %" for c in row) for row in self.candidates]
        return answer_html(prompt, self.pieces, self.logprobs, [f"\n{note}" for note in notes])

    @property
    def tokens_per_pass(self) -> float:
        """Tokens per pass through the network: 1 without guesses."""
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
    """Collects the steps of a request into a Generation. Timing starts when it is made, before the prefill.

    prompt_tokens: the ids that are processed for this request. alone: whether to start measuring peak memory here;
    requests that run at the same time share one measurement.
    """

    def __init__(self, request: Request, prompt_tokens: Sequence[int], *, alone: bool = True) -> None:
        self._request, self._prompt_tokens = request, list(prompt_tokens)
        self._steps: list[Step] = []
        self._start = self._first = self._last = time.perf_counter()
        if alone:
            mx.reset_peak_memory()

    @property
    def count(self) -> int:
        """How many steps were added."""
        return len(self._steps)

    def add(self, step: Step) -> None:
        self._last = time.perf_counter()
        if not self._steps:
            self._first = self._last
        self._steps.append(step)

    def record(self) -> Generation:
        """The record so far. An interrupted answer has finish_reason "stop"."""
        reason = self._steps[-1].finish_reason or "stop" if self._steps else "context"
        return Generation(
            prompt=self._request.prompt,
            prompt_tokens=self._prompt_tokens,
            text="".join(step.text for step in self._steps),
            tokens=[step.token for step in self._steps],
            logprobs=[step.logprob for step in self._steps],
            pieces=[step.text for step in self._steps],
            candidates=[step.candidates for step in self._steps if step.candidates],
            finish_reason=reason,
            seed=self._request.seed,
            prompt_seconds=self._first - self._start,
            generation_seconds=self._last - self._first,
            peak_memory=mx.get_peak_memory(),
            guesses=sum(step.guesses for step in self._steps),
            accepted=sum(step.guessed for step in self._steps),
        )
