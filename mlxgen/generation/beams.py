"""The beams of a search on the device: what may follow them, and which of it they go on with.

All results are unevaluated arrays, so that the next step can be sent to the device before this one is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx

from mlxgen.generation.context import Context
from mlxgen.generation.request import Request
from mlxgen.network.beam_cache import BeamCache
from mlxgen.sampling.bans import Banning
from mlxgen.sampling.chooser import token_counts
from mlxgen.sampling.k_highest import k_highest
from mlxgen.sampling.samplers import apply_bias, apply_penalties
from mlxgen.sampling.softmax import log_softmax


class Continuation(NamedTuple):
    """A beam and a token after it. total, logprob: see Continuations."""

    beam: int
    token: int
    total: float
    logprob: float


@dataclass(frozen=True, slots=True)
class Continuations:
    """The best continuations of all beams, best first.

    total [K]: the sum of the log-probabilities of all tokens, the new one included, after the rules. logprob [K]: that
    of the new token under the model itself. finite: whether the model's logits are finite.
    """

    beam: mx.array  # int32 [K]
    token: mx.array  # int32 [K]
    total: mx.array
    logprob: mx.array
    finite: mx.array

    def read(self) -> tuple[list[Continuation], bool]:
        """Wait for the continuations, and for whether the logits are finite."""
        columns: Any = [column.tolist() for column in (self.beam, self.token, self.total, self.logprob)]
        return [Continuation(*row) for row in zip(*columns, strict=True)], bool(self.finite.item())


class Beams:
    """A number of texts that continue the tokens of a context.

    request: its bias, penalties and bans change the log-probabilities of each step, as in transformers. What they take
    from one token is not given to the others.
    """

    def __init__(self, context: Context, request: Request, beams: int) -> None:
        self._decoder, self._sampling, self._beams = context.model.decoder, request.sampling, beams
        end_tokens, bans = request.end_tokens(context.model), request.bans(context.model)
        self._ends = mx.array(sorted(end_tokens), dtype=mx.int32) if end_tokens else None
        self._most = most_continuations(beams, end_tokens)
        counted = request.sampling.counts_tokens
        self._counts = token_counts(context.tokens, context.model.config.vocab_size) if counted else None
        self._banning = Banning(bans, context.tokens)

    def start(self, context: Context, logits: mx.array) -> Continuations:
        """The first continuations, from the logits [1, V] of the context's last token. Takes the context's cache."""
        self._cache = BeamCache(context.give_cache_away(), self._beams)
        return self._best(logits, mx.zeros((1,)))

    def go_on(self, found: Continuations, ended: list[bool] | None = None) -> Continuations:
        """Let the beams go on with the best continuations that do not end; returns what may follow them.

        ended: which continuations end; None for those with an end token. If too few go on, the rest of the beams are
        dead: their totals are -inf.
        """
        K = len(found.token)
        if ended is not None:
            ends = mx.array(ended)
        elif self._ends is not None:
            ends = mx.any(found.token[:, None] == self._ends, axis=1)
        else:
            ends = mx.zeros((K,), mx.bool_)
        chosen = mx.argsort(mx.arange(K) + K * ends)[: self._beams]  # as in `going_on`
        parents, tokens = found.beam[chosen], found.token[chosen]
        totals = mx.where(ends[chosen], -mx.inf, found.total[chosen])
        if self._counts is not None:
            self._counts = self._counts[parents].at[mx.arange(self._beams), tokens].add(1)
        self._banning.reorder(parents)
        self._banning.remember(tokens)
        self._cache.begin_step(parents)
        hidden = self._decoder.hidden(tokens[None], self._cache.layers)  # [1, beams, D]
        return self._best(self._decoder.head(hidden[0]), totals)

    def _best(self, logits: mx.array, totals: mx.array) -> Continuations:
        """The best continuations from the logits [n, V] after n beams, and send them to the device."""
        V = logits.shape[1]
        logprobs = log_softmax(logits)
        total, at = k_highest((self._ruled(logprobs) + totals[:, None]).reshape(-1), self._most)
        found = Continuations(at // V, at % V, total, logprobs.reshape(-1)[at], mx.all(mx.isfinite(logits)))
        mx.async_eval(found.beam, found.token, found.total, found.logprob, found.finite)
        return found

    def _ruled(self, logprobs: mx.array) -> mx.array:
        if self._sampling.logit_bias:
            logprobs = apply_bias(logprobs, self._sampling.logit_bias)
        if self._counts is not None:
            logprobs = apply_penalties(logprobs, self._counts, self._sampling)
        return [logprobs, *self._banning.apply(logprobs).values()][-1]


def most_continuations(beams: int, end_tokens: frozenset[int]) -> int:
    """How many continuations a step looks at: enough for `beams` of them not to end."""
    return beams * max(2, 1 + len(end_tokens))


def going_on(ended: list[bool], beams: int) -> list[int]:
    """Which continuations the beams go on with: the first that do not end."""
    return sorted(range(len(ended)), key=ended.__getitem__)[:beams]
