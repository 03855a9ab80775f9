"""The numbers and texts of a trace, computed from logits in float64."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxgen.sampling.samplers import draw_numbers
from mlxgen.text.tokenizer import Tokenizer
from mlxgen.tracing.record import Rest, Token

Vector = npt.NDArray[np.float64]  # one number for each token of the vocabulary

BANDS = 24  # groups of the rest, enough for its probability to within about 1e-4 at any usual temperature


def rest_of(adjusted: Vector, p: Vector, rule_p: Vector, top: list[int]) -> Rest:
    """Summarize all tokens that are not in `top`."""
    others = np.ones(len(adjusted), bool)
    others[top] = False
    logits = adjusted[others & np.isfinite(adjusted)]
    groups = []
    if len(logits):
        edges = np.linspace(logits.max(), logits.min(), BANDS + 1)[1:-1]
        band = np.searchsorted(-edges, -logits)
        for n in range(BANDS):
            if len(inside := logits[band == n]):
                groups.append((len(inside), float(inside.mean()), float(inside.var())))
    return Rest(int(others.sum()), float(p[others].sum()), float(rule_p[others].sum()), groups)


def random_number(key: mx.array | None) -> float | None:
    """The random number in [0, 1) that decided the draw, see `Chosen.interval`; None for greedy decoding."""
    return None if key is None else float(np.array(draw_numbers(key, 1))[0])


def traced_token(tokenizer: Tokenizer, token: int) -> Token:
    return Token(token, tokenizer.token(token), tokenizer.token_text(token))


def to_float64(logits: mx.array) -> Vector:
    return np.array(logits.astype(mx.float32)).reshape(-1).astype(np.float64)


def softmax(logits: Vector) -> Vector:
    powers: Vector = np.exp(logits - logits.max())
    return powers / powers.sum()


def entropy(p: Vector) -> float:
    """The entropy of a distribution, in bits."""
    some = p[p > 0]
    return float(max(0.0, -(some * np.log2(some)).sum()))
