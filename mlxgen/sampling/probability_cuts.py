"""Typical sampling, and the epsilon and eta cutoffs: rules that look at probabilities rather than at ranks.

Each keeps exactly the tokens that the rule of the same name in transformers keeps, tied ones included. Logits are
float32 [B, V]; a removed token gets the logit -inf.
"""

from __future__ import annotations

import mlx.core as mx

from mlxgen.sampling.softmax import log_softmax, softmax, total, total_before

SMALLEST = 1e-30  # smaller values could become 0 in float32


def apply_typical_p(logits: mx.array, p: float) -> mx.array:
    """Keep the tokens whose surprise is closest to the entropy, up to a total probability of p (Meister et al., 2022).

    The surprise of a token is -log of its probability; the entropy is its expected value. The token that crosses p is
    kept, and so is every token exactly as close as that one. The most probable tokens may be among those removed.
    """
    if p == 1:
        return logits
    logprobs = log_softmax(logits)
    distance = mx.abs(-logprobs - entropy(logprobs))  # infinite for tokens that are removed already
    order = mx.argsort(distance, axis=-1)
    distances, probs = (mx.take_along_axis(x, order, axis=-1) for x in (distance, mx.exp(logprobs)))
    needed = total_before(probs) < max(p, SMALLEST)  # the closer tokens do not reach p
    furthest = mx.max(mx.where(needed, distances, 0), axis=-1, keepdims=True)
    return mx.where(distance <= furthest, logits, -mx.inf)


def apply_epsilon_cutoff(logits: mx.array, epsilon: float) -> mx.array:
    """Keep tokens with a probability of at least epsilon, and always the most probable one (Hewitt et al., 2022)."""
    return logits if epsilon == 0 else _at_least(logits, softmax(logits), mx.array(epsilon))


def apply_eta_cutoff(logits: mx.array, epsilon: float) -> mx.array:
    """Keep tokens with a probability of at least min(epsilon, sqrt(epsilon) e^-entropy) (Hewitt et al., 2022).

    So less is cut where many tokens are possible. The most probable token is kept in any case.
    """
    if epsilon == 0:
        return logits
    eta = mx.minimum(epsilon, mx.sqrt(mx.array(epsilon)) * mx.exp(-entropy(log_softmax(logits))))  # [B, 1]
    return _at_least(logits, softmax(logits), eta)


def entropy(logprobs: mx.array) -> mx.array:
    """The entropy of a distribution, in nats: log-probabilities [B, V] -> [B, 1]. Removed tokens add nothing."""
    probs = mx.exp(logprobs)
    return -total(mx.where(probs > 0, probs * logprobs, 0))


def _at_least(logits: mx.array, probs: mx.array, bound: mx.array) -> mx.array:
    best = mx.max(logits, axis=-1, keepdims=True)
    return mx.where((probs >= bound) | (logits == best), logits, -mx.inf)
