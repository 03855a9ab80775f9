"""The numbers and texts of a trace, computed from logits in float64."""

from __future__ import annotations

from functools import cache

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxgen.sampling.samplers import draw
from mlxgen.text.detokenizer import byte_alphabet, piece_bytes
from mlxgen.text.tokenizer import Tokenizer
from mlxgen.tracing.record import Rest, Token

Vector = npt.NDArray[np.float64]  # one number for each token of the vocabulary

BANDS = 24  # groups of the rest, enough for its probability to within about 1e-4 at any usual temperature
PROBES, PROBED = 8, 100  # how many draws, from how many tokens, to find out how MLX draws
ROUNDING = 1e-4  # MLX sums probabilities in float32
_ALPHABET = byte_alphabet()


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
    """The random number that decided the draw, see `Chosen.interval`.

    None for greedy decoding, and for a version of MLX that draws in a different way.
    """
    if key is None or not draws_along_a_line(str(mx.default_device())):
        return None
    return _uniform(key)


@cache
def draws_along_a_line(device: str) -> bool:
    """Whether MLX draws the token whose interval contains the key's random number, tested on a few draws."""
    logits = mx.sin(mx.arange(PROBED, dtype=mx.float32))[None]
    p = softmax(to_float64(logits))
    ends = np.cumsum(p)
    for seed in range(PROBES):
        key = mx.random.key(seed)
        token, number = int(np.array(draw(logits, key))[0]), _uniform(key)
        if not ends[token] - p[token] - ROUNDING <= number <= ends[token] + ROUNDING:
            return False
    return True


def _uniform(key: mx.array) -> float:
    return float(np.array(mx.random.uniform(shape=(), key=key)))


def traced_token(tokenizer: Tokenizer, token: int) -> Token:
    return Token(token, tokenizer.token(token), token_text(tokenizer, token))


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """The text of a single token, with its leading space; its bytes if they are not a whole character."""
    piece, text = tokenizer.token(token), tokenizer.decode([token])
    if "\ufffd" in text and piece and all(character in _ALPHABET for character in piece):
        return piece_bytes(piece).decode("utf-8", "backslashreplace")
    return " " + text if piece.startswith("▁") and not text.startswith(" ") else text


def to_float64(logits: mx.array) -> Vector:
    return np.array(logits.astype(mx.float32)).reshape(-1).astype(np.float64)


def softmax(logits: Vector) -> Vector:
    powers: Vector = np.exp(logits - logits.max())
    return powers / powers.sum()


def entropy(p: Vector) -> float:
    """The entropy of a distribution, in bits."""
    some = p[p > 0]
    return float(max(0.0, -(some * np.log2(some)).sum()))
