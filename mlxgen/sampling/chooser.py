"""Choosing a token from logits, without waiting for the device: all results are unevaluated arrays."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlxgen.errors import OptionError
from mlxgen.sampling.bans import Banning, Bans
from mlxgen.sampling.samplers import (
    Sampling,
    apply_bias,
    apply_penalties,
    apply_rules,
    draw,
    draw_or_accept,
    greedy,
)
from mlxgen.sampling.softmax import log_total, softmax

LogitsProcessor = Callable[[mx.array, mx.array], mx.array]
Watch = Callable[[mx.array, dict[str, mx.array], "mx.array | None", "Choice"], None]


@dataclass(frozen=True, slots=True)
class ChosenToken:
    """A choice that has been read. The fields are those of `Choice`, for one row; top: ids and numbers, best first."""

    token: int
    logprob: float
    finite: bool
    from_model: bool
    top: tuple[tuple[int, float, float], ...]  # id, log-probability, probability under the rules


@dataclass(frozen=True, slots=True)
class Choice:
    """One chosen token per row and its numbers, as unevaluated arrays."""

    token: mx.array  # uint32 [n]
    logprob: mx.array  # float32 [n], under the model itself
    finite: mx.array  # bool [n], whether all logits are finite and the rules before the temperature left a token
    top: tuple[mx.array, ...]  # the candidates' ids, log-probabilities and probabilities under the rules, each [n, N]
    from_model: mx.array  # bool [n], whether the model's own logits are finite

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays that have to be evaluated to read the choice."""
        return [self.token, self.logprob, self.finite, self.from_model, *self.top]

    def read(self) -> list[ChosenToken]:
        """Wait for the tokens of all rows."""
        columns: Any = [column.tolist() for column in (self.token, self.logprob, self.finite, self.from_model)]
        tops: Any = [column.tolist() for column in self.top]
        return [
            ChosenToken(token, logprob, finite, from_model, tuple(zip(*(column[at] for column in tops), strict=True)))
            for at, (token, logprob, finite, from_model) in enumerate(zip(*columns, strict=True))
        ]


@dataclass(frozen=True, slots=True)
class Guess:
    """A token that may come next. drawn_from: the logits [1, V] it was drawn from; None if it was not drawn."""

    token: mx.array  # uint32 [1], not yet evaluated
    drawn_from: mx.array | None = None


class Chooser:
    """Applies the sampling rules of a request at each step, and splits its random key once per step.

    It begins with one row. Rows of other requests with the same rules can `join`: each keeps its own key and counts,
    and gets the token that it would get alone, but one graph serves all of them.

    context: the tokens before the first choice, for penalties, bans and processors. bans: what the rules of `sampling`
    forbid, by the ids of the model. candidates: how many of the most probable tokens each choice reports. watch: called
    after each choice with the float32 logits [1, V], what `_adjust` made of them, the step's key (None for greedy) and
    the choice.
    """

    def __init__(
        self,
        sampling: Sampling,
        seed: int,
        context: Sequence[int],
        vocab_size: int,
        *,
        bans: Bans | None = None,
        processors: Sequence[LogitsProcessor] = (),
        candidates: int = 0,
        watch: Watch | None = None,
    ) -> None:
        self._sampling, self._processors, self._watch = sampling, tuple(processors), watch
        self._candidates = min(candidates, vocab_size)
        self._keys = mx.random.key(seed)[None]  # [n, 2]
        mx.async_eval(self._keys)  # the first step may be asked for from another thread
        self._tokens = mx.array(list(context), dtype=mx.int32) if self._processors else None
        self._counts = token_counts(context, vocab_size) if sampling.counts_tokens else None
        self._bans = bans or Bans()
        self._banning = None if self._bans == Bans() else Banning(self._bans, context)

    def __call__(self, logits: mx.array, guess: Guess | None = None) -> Choice:
        """Choose a token per row from logits [n, V] of any float type.

        A guess that was drawn at random is accepted as often as the rules allow (samplers.draw_or_accept; one row
        only). Any other guess has no effect.
        """
        logits = logits.astype(mx.float32)
        stages = self._adjust(logits)
        ruled = adjusted = _last(stages)
        keys = None
        if self._sampling.greedy:
            token = greedy(ruled)
            ruled = apply_rules(ruled, self._sampling) if self._candidates else ruled
        else:
            ruled, keys = apply_rules(ruled, self._sampling), self._next_keys()
            if guess is None or guess.drawn_from is None:
                token = draw(ruled, keys)
            else:
                token = draw_or_accept(ruled, guess.token, guess.drawn_from, keys[0])
        self._remember(token)
        logit = mx.take_along_axis(logits, token[:, None], axis=-1)  # [n, 1]
        is_highest = self._sampling.greedy and adjusted is logits
        normalizer = log_total(logits, logit if is_highest else None)  # [n, 1]
        logprob = (logit - normalizer)[:, 0]
        # NaN and +inf make the normalizer NaN
        finite = from_model = mx.isfinite(normalizer[:, 0]) & mx.isfinite(mx.min(logits, axis=-1))
        if adjusted is not logits:  # some tokens may be removed, but not all of them
            some_left = mx.isfinite(mx.max(adjusted, axis=-1)) & ~mx.any(mx.isnan(adjusted), axis=-1)
            finite = from_model & some_left
        choice = Choice(token, logprob, finite, self._top(logits, normalizer, ruled), from_model)
        if self._watch:
            self._watch(logits, stages, None if keys is None else keys[0], choice)
        return choice

    def shares_rules(self, other: Chooser) -> bool:
        """Whether rows of the other can join: the same rules and candidates, and no processors."""
        same = self._sampling == other._sampling and self._candidates == other._candidates and self._bans == other._bans
        return same and not (self._processors or other._processors)

    def join(self, other: Chooser) -> None:
        """Add the other's rows after those that are here."""
        self._keys = mx.concatenate([self._keys, other._keys])
        if self._counts is not None and other._counts is not None:
            self._counts = mx.concatenate([self._counts, other._counts])
        if self._banning and other._banning:
            self._banning.join(other._banning)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        index = mx.array(list(rows), dtype=mx.int32)
        self._keys = self._keys[index]
        if self._counts is not None:
            self._counts = self._counts[index]
        if self._banning:
            self._banning.keep(rows)

    def only(self, row: int) -> Chooser:
        """A chooser that goes on with one of the rows."""
        other = self._copied()
        other.keep([row])
        return other

    @property
    def state(self) -> list[mx.array]:
        """The arrays that the next choice depends on. Evaluate them together with this choice.

        MLX's streams belong to a thread, and the next step may be requested from another thread.
        """
        own = [array for array in (self._keys, self._tokens, self._counts) if array is not None]
        return own + (self._banning.state if self._banning else [])

    def fork(self) -> Chooser:
        """A copy that continues from here with the same rules, for making guesses.

        It leaves out a caller's processors, which may depend on how often they are called.
        """
        other = self._copied()
        other._processors, other._tokens, other._watch = (), None, None
        return other

    def guess(self, logits: mx.array) -> Guess:
        """Choose a guess from a draft model's logits [1, V]."""
        adjusted = _last(self._adjust(logits.astype(mx.float32)))
        if self._sampling.greedy:
            guess = Guess(greedy(adjusted))
        else:
            ruled = apply_rules(adjusted, self._sampling)
            guess = Guess(draw(ruled, self._next_keys()), ruled)
        self._remember(guess.token)
        return guess

    def _next_keys(self) -> mx.array:
        """This step's keys [n, 2]."""
        pairs = mx.vmap(mx.random.split)(self._keys)  # [n, 2, 2]
        self._keys = pairs[:, 0]
        return pairs[:, 1]

    def _remember(self, token: mx.array) -> None:
        """Add the chosen tokens to what processors, penalties and bans see at the next choice."""
        if self._tokens is not None:
            self._tokens = mx.concatenate([self._tokens, token.astype(mx.int32)])
        if self._counts is not None:
            self._counts = self._counts.at[mx.arange(len(token)), token].add(1)
        if self._banning:
            self._banning.remember(token)

    def _adjust(self, logits: mx.array) -> dict[str, mx.array]:
        """The logits [n, V] after processors, bias and penalties ("adjust"), and then after each ban, in order."""
        for processor in self._processors:
            # _tokens is not None if there are processors
            logits = _checked(processor(self._tokens, logits), logits.shape)  # type: ignore[arg-type]
        if self._sampling.logit_bias:
            logits = apply_bias(logits, self._sampling.logit_bias)
        if self._counts is not None:
            logits = apply_penalties(logits, self._counts, self._sampling)
        return {"adjust": logits} | (self._banning.apply(logits) if self._banning else {})

    def _copied(self) -> Chooser:
        other = copy.copy(self)  # safe: its arrays are replaced, never written to
        other._banning = copy.copy(self._banning)
        return other

    def _top(self, logits: mx.array, normalizer: mx.array, ruled: mx.array) -> tuple[mx.array, ...]:
        if not self._candidates:
            return ()
        ids = mx.argsort(-logits, axis=-1)[:, : self._candidates]  # [n, N]
        logprobs = mx.take_along_axis(logits, ids, axis=-1) - normalizer
        return ids, logprobs, mx.take_along_axis(softmax(ruled), ids, axis=-1)


def _last(stages: dict[str, mx.array]) -> mx.array:
    return next(reversed(stages.values()))


def _checked(logits: object, shape: tuple[int, ...]) -> mx.array:
    """What a processor returned, if it is logits. Raises OptionError."""
    if isinstance(logits, mx.array) and logits.shape == shape:
        return logits
    kind = f"{type(logits).__module__.partition('.')[0]}.{type(logits).__name__}".removeprefix("builtins.")
    found = f"an MLX array of shape {list(logits.shape)}" if isinstance(logits, mx.array) else f"a value of type {kind}"
    raise OptionError(f"a logits processor must return the logits, an MLX array of shape {list(shape)}, not {found}")


def token_counts(context: Sequence[int], vocab_size: int) -> mx.array:
    """How often each token occurs in the context: float32 [1, V]."""
    counts = [0.0] * vocab_size
    for token in context:
        counts[token] += 1
    return mx.array([counts])
