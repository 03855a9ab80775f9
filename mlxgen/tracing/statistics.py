"""What a trace tells of logits and tokens, counted in float64."""

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

BANDS = 24  # groups of the rest: their mass is then right to about 1e-4 at any usual temperature
PROBES, PROBED = 8, 100  # draws, each of so many tokens, that tell how MLX draws
ROUNDING = 1e-4  # MLX adds probabilities up in float32
_ALPHABET = byte_alphabet()


def rest_of(adjusted: Vector, p: Vector, rule_p: Vector, top: list[int]) -> Rest:
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
    """The number that decided the draw, by which MLX walks along the kept tokens in order of their ids.

    None without a draw, and for a version of MLX that draws in another way.
    """
    if key is None or not draws_along_a_line(str(mx.default_device())):
        return None
    return _uniform(key)


@cache
def draws_along_a_line(device: str) -> bool:
    """Whether every draw of a few known ones is the token that the key's random number falls on."""
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
    """A token's text by itself, with the space it begins with; its bytes where they are no whole character."""
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
    """In bits."""
    some = p[p > 0]
    return float(max(0.0, -(some * np.log2(some)).sum()))
