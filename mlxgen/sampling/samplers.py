"""The sampling rules as pure functions on logits, and Sampling, their checked options.

Logits are float32 [B, V]. A removed token gets the logit -inf. The order of the rules is fixed: bias, penalties, bans
(mlxgen.sampling.bans), temperature, top-k, top-p, min-p, typical-p, the epsilon and eta cutoffs, then one draw from the
tokens that are left. Ties go to the lower token id, except in the last three rules, which keep tied tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from mlxgen import cpu_operations, device
from mlxgen.errors import OptionError, check_whole, shown
from mlxgen.sampling.bans import Word, checked_tokens, checked_words
from mlxgen.sampling.probability_cuts import SMALLEST, apply_epsilon_cutoff, apply_eta_cutoff, apply_typical_p
from mlxgen.sampling.softmax import exponentials, softmax, total, total_before

INF = float("inf")
SORTED_AT_ONCE = 2048  # numbers that one of Metal's sorting kernels takes
LARGEST = 1e30  # larger values could become infinite in float32


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose a token from logits. Raises OptionError for invalid values; the functions below rely on that.

    temperature: 0 is greedy. logit_bias: token id -> number added to its logit. bad_words: texts and lists of token
    ids, kept as tuples. None turns a rule off.
    """

    temperature: float = 0.8
    top_k: int | None = 40
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    no_repeat_ngram: int | None = None
    bad_words: Sequence[Word] = ()
    min_tokens: int | None = None
    suppress_tokens: Sequence[int] = ()

    def __post_init__(self) -> None:
        if not _finite(self.temperature) or self.temperature < 0:
            raise OptionError(f"temperature must be 0 (greedy) or a positive number, not {shown(self.temperature)}")
        if self.top_k is not None and (not _whole(self.top_k) or self.top_k < 1):
            raise OptionError(f"top_k must be a whole number of at least 1, or None (off), not {shown(self.top_k)}")
        if self.top_p is not None and not (_finite(self.top_p) and 0 < self.top_p <= 1):
            raise OptionError(f"top_p must be above 0 and at most 1, or None (off), not {shown(self.top_p)}")
        if self.min_p is not None and not (_finite(self.min_p) and 0 <= self.min_p <= 1):
            raise OptionError(f"min_p must be between 0 and 1, not {shown(self.min_p)}")
        if self.typical_p is not None and not (_finite(self.typical_p) and 0 < self.typical_p <= 1):
            raise OptionError(f"typical_p must be above 0 and at most 1, or None (off), not {shown(self.typical_p)}")
        for name in ("epsilon_cutoff", "eta_cutoff"):
            value = getattr(self, name)
            if value is not None and not (_finite(value) and 0 <= value < 1):
                raise OptionError(f"{name} must be at least 0 (off) and below 1, not {shown(value)}")
        if self.repetition_penalty is not None and not (
            _finite(self.repetition_penalty) and self.repetition_penalty > 0
        ):
            raise OptionError(f"repetition_penalty must be a positive number, not {shown(self.repetition_penalty)}")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            if value is not None and not _finite(value):
                raise OptionError(f"{name} must be a finite number, not {shown(value)}")
        for token, bias in (self.logit_bias or {}).items():
            if not _whole(token) or token < 0 or not isinstance(bias, int | float) or math.isnan(bias):
                raise OptionError(f"logit_bias maps token ids to numbers, not {shown(token)} to {shown(bias)}")
            if bias == INF:
                raise OptionError(
                    f"logit_bias of token {token} is infinite; -inf bans a token, a large number forces it"
                )
        ngram = self.no_repeat_ngram
        if ngram is not None and (not _whole(ngram) or ngram < 1):
            raise OptionError(
                f"no_repeat_ngram must be a whole number of at least 1, or None (off), not {shown(ngram)}"
            )
        if self.min_tokens is not None:
            check_whole("min_tokens", self.min_tokens, 0)
        object.__setattr__(self, "bad_words", checked_words(self.bad_words))
        object.__setattr__(self, "suppress_tokens", checked_tokens("suppress_tokens", self.suppress_tokens))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def counts_tokens(self) -> bool:
        """Whether a rule depends on the tokens in the context."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return any(penalty is not None for penalty in penalties)


def apply_penalties(logits: mx.array, counts: mx.array, sampling: Sampling) -> mx.array:
    """Lower the logits of tokens that occur in the context. counts: how often each token occurs, float32 [B, V].

    repetition_penalty divides positive logits and multiplies negative ones (Keskar et al., 2019, as in transformers).
    presence_penalty is subtracted once, frequency_penalty once per occurrence (as in OpenAI's API).
    """
    seen = counts > 0
    if (penalty := sampling.repetition_penalty) is not None:
        logits = mx.where(seen, mx.where(logits > 0, logits / penalty, logits * penalty), logits)
    if sampling.presence_penalty is not None:
        logits = logits - sampling.presence_penalty * seen
    if sampling.frequency_penalty is not None:
        logits = logits - sampling.frequency_penalty * counts
    return logits


def apply_bias(logits: mx.array, bias: Mapping[int, float]) -> mx.array:
    """Add each token's bias to its logit; -inf bans it. Raises OptionError for an id outside the vocabulary."""
    check_bias(bias, logits.shape[-1])
    ids = mx.array(list(bias), dtype=mx.int32)
    return logits.at[..., ids].add(mx.array(list(bias.values()), dtype=logits.dtype))


def check_bias(bias: Mapping[int, float], vocab_size: int) -> None:
    """Raise OptionError if the bias has an id outside the vocabulary."""
    if (highest := max(bias, default=0)) >= vocab_size:
        raise OptionError(f"logit_bias has token {highest}, but the highest token id is {vocab_size - 1}")


def apply_temperature(logits: mx.array, temperature: float) -> mx.array:
    """Divide by the temperature (> 0): below 1 sharpens the distribution, above 1 flattens it."""
    return logits if temperature == 1 else logits / max(temperature, SMALLEST)


def apply_top_k(logits: mx.array, k: int) -> mx.array:
    """Keep exactly the k highest logits (Fan et al., 2018). Ties go to the lower token id; k >= V changes nothing."""
    V = logits.shape[-1]
    if k >= V:
        return logits
    above, level = device.fused(_above_and_level)(logits, kth_highest(logits, k))
    n_level = k - mx.sum(above, axis=-1, keepdims=True)  # how many of the tied tokens to keep
    return device.fused(_above_or_first_level)(logits, above, level, mx.cumsum(level, axis=-1), n_level)


# What follows compares numbers that exist already, so that one kernel for all of it rounds nothing.


def _above_and_level(logits: mx.array, bound: mx.array) -> tuple[mx.array, mx.array]:
    return logits > bound, logits == bound


def _above_or_first_level(
    logits: mx.array, above: mx.array, level: mx.array, nth: mx.array, n_level: mx.array
) -> mx.array:
    return mx.where(above | (level & (nth <= n_level)), logits, -INF)


def _past_and_possible(ends: mx.array, weights: mx.array, bound: mx.array) -> mx.array:
    return (ends > bound) & (weights > 0)


def _below_and_possible(ahead: mx.array, probs: mx.array, bound: mx.array) -> mx.array:
    return (ahead < bound) & (probs > 0)


def _only_kept(kept: mx.array, logits: mx.array) -> mx.array:
    return mx.where(kept, logits, -INF)


def kth_highest(logits: mx.array, k: int) -> mx.array:
    """The k-th highest logit of each row: [B, V] -> [B, 1].

    A small k is looked for among the k highest of each block. On Metal, MLX sorts whole rows to find it: a block is one
    kernel, a vocabulary of 50,257 a dozen.
    """
    B, V = logits.shape
    is_small = 4 * k <= SORTED_AT_ONCE
    if is_small and cpu_operations.available_for(logits):
        return cpu_operations.kth_highest(logits, k)
    if is_small and V > SORTED_AT_ONCE:
        blocks = mx.pad(logits, [(0, 0), (0, -V % SORTED_AT_ONCE)], constant_values=-INF)
        blocks = blocks.reshape(B, -1, SORTED_AT_ONCE)
        logits = mx.topk(blocks, k, axis=-1).reshape(B, -1)  # [B, blocks * k]
    at = logits.shape[-1] - k
    return mx.partition(logits, at, axis=-1)[:, at : at + 1]


def apply_top_p(logits: mx.array, p: float) -> mx.array:
    """Keep the smallest set of most probable tokens whose total probability reaches p (Holtzman et al., 2019).

    The token that crosses p is kept, so at least one token always is.
    """
    if p == 1:
        return logits
    order = mx.argsort(-logits, axis=-1)  # [B, V], best first; the sort is stable, so ties keep their order
    probs = softmax(mx.take_along_axis(logits, order, axis=-1))
    ahead = total_before(probs)  # total probability of the better tokens
    kept = device.fused(_below_and_possible)(ahead, probs, mx.array([max(p, SMALLEST)]))
    kept = mx.put_along_axis(mx.zeros_like(kept), order, kept, axis=-1)  # back in order of token id
    return device.fused(_only_kept)(kept, logits)


def apply_min_p(logits: mx.array, min_p: float) -> mx.array:
    """Keep tokens at least min_p times as probable as the best one (Nguyen et al., 2024)."""
    if min_p == 0:
        return logits
    return mx.where(logits >= mx.max(logits, axis=-1, keepdims=True) + math.log(min_p), logits, -INF)


RULES: dict[str, Callable[[mx.array, Any], mx.array]] = {  # in order
    "temperature": apply_temperature,
    "top_k": apply_top_k,
    "top_p": apply_top_p,
    "min_p": apply_min_p,
    "typical_p": apply_typical_p,
    "epsilon_cutoff": apply_epsilon_cutoff,
    "eta_cutoff": apply_eta_cutoff,
}


def rules(sampling: Sampling) -> list[tuple[str, float, Callable[[mx.array, Any], mx.array]]]:
    """The active rules from temperature on, in order: the name, value and function of each."""
    if sampling.greedy:
        return [("greedy", 1, apply_top_k)]
    return [(name, value, rule) for name, rule in RULES.items() if (value := getattr(sampling, name)) is not None]


def apply_rules(logits: mx.array, sampling: Sampling) -> mx.array:
    """Apply the rules from temperature on in order; greedy keeps only the best token. [B, V] -> [B, V]."""
    for _, value, rule in rules(sampling):
        logits = rule(logits, value)
    return logits


def greedy(logits: mx.array) -> mx.array:
    """The token id with the highest logit; ties go to the lower id. [B, V] -> uint32 [B]."""
    return mx.argmax(logits, axis=-1)


def draw(logits: mx.array, key: mx.array) -> mx.array:
    """Draw one token id per row from softmax(logits). Only the key decides. [B, V] -> uint32 [B].

    key: one for all rows [2], or one per row [B, 2]. The kept tokens lie on a line in order of their ids, each as long
    as its probability, and the key's random number is a place on it (inverse transform sampling). A token that a rule
    cut has no length and is never returned, however the device rounds the sums.
    """
    number = draw_numbers(key, logits.shape[0])  # [B]
    weights = exponentials(logits)
    ends = total_before(weights) + weights
    bound = number[:, None] * total(weights)  # [B, 1]
    reached = device.fused(_past_and_possible)(ends, weights, bound)
    # Rounding can leave the number past the last end; then the best token is as good as any.
    token = mx.where(mx.any(reached, axis=-1), mx.argmax(reached.astype(mx.uint8), axis=-1), greedy(logits))
    return token.astype(mx.uint32)


def draw_numbers(key: mx.array, rows: int) -> mx.array:
    """Uniform numbers in [0, 1), one per row: float32 [rows]. key: [2] for all rows, or [rows, 2]."""
    if key.ndim == 1:
        return mx.random.uniform(shape=(rows,), key=key)
    return mx.vmap(lambda own: mx.random.uniform(shape=(), key=own))(key)


def draw_or_accept(logits: mx.array, guess: mx.array, drawn_from: mx.array, key: mx.array) -> mx.array:
    """Draw one token id per row from softmax(logits) such that it is the guess as often as possible. uint32 [B].

    guess: uint32 [B], drawn from softmax(drawn_from), with drawn_from float32 [B, V]. With p = softmax(logits) and
    q = softmax(drawn_from), the guess is accepted with probability min(1, p / q); otherwise the token is drawn in
    proportion to max(p - q, 0) (speculative sampling: Leviathan et al., 2023; Chen et al., 2023). A rejected guess
    is never drawn.
    """
    accept_key, draw_key = mx.random.split(key)
    p, q = softmax(logits), softmax(drawn_from)
    p_guess, q_guess = (mx.take_along_axis(x, guess[:, None], axis=-1)[:, 0] for x in (p, q))
    accepted = mx.random.uniform(shape=guess.shape, key=accept_key) * q_guess < p_guess
    rest = mx.maximum(p - q, 0)
    total = mx.sum(rest, axis=-1, keepdims=True)
    # The total is 0 where p and q differ only by rounding, and NaN where the guess came from NaN logits.
    rest = mx.where((total > 0) & mx.isfinite(total), mx.log(rest), logits)
    return mx.where(accepted, guess, draw(rest, draw_key))


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST  # False for NaN


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
