"""Comparing a converted model with its source: the logits and the perplexity of the same text."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_map

from mlxgen.errors import ModelError, OptionError
from mlxgen.network.decoder import GPT2
from mlxgen.sampling.softmax import log_softmax
from mlxgen.text.tokenizer import Tokenizer, load_tokenizer
from mlxgen.weights.load import build_decoder, open_decoder
from mlxgen.weights.parameters import DecoderWeights

MAX_TOKENS = 256
#: Lincoln's Gettysburg Address, 1863: in the public domain, and long enough to tell models apart.
TEXT = (
    "Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in "
    "Liberty, and dedicated to the proposition that all men are created equal.\n\n"
    "Now we are engaged in a great civil war, testing whether that nation, or any nation so conceived and so "
    "dedicated, can long endure. We are met on a great battle-field of that war. We have come to dedicate a "
    "portion of that field, as a final resting place for those who here gave their lives that that nation might "
    "live. It is altogether fitting and proper that we should do this.\n\n"
    "But, in a larger sense, we can not dedicate -- we can not consecrate -- we can not hallow -- this ground. "
    "The brave men, living and dead, who struggled here, have consecrated it, far above our poor power to add or "
    "detract. The world will little note, nor long remember what we say here, but it can never forget what they "
    "did here. It is for us the living, rather, to be dedicated here to the unfinished work which they who fought "
    "here have thus far so nobly advanced.\n"
)


@dataclass(frozen=True, slots=True)
class Verification:
    """How much the result differs from the source on the same text."""

    tokens: int
    largest_difference: float  # between two logits
    perplexity_before: float
    perplexity_after: float


def compare(weights: DecoderWeights, folder: Path) -> Verification:
    """Compare the source's weights with the model folder made from them. Raises ModelError."""
    tokenizer = load_tokenizer(folder, n_embeddings=weights.config.vocab_size)
    return compare_decoders(weights, tokenizer, lambda: open_decoder(folder), folder)


def compare_decoders(
    weights: DecoderWeights, tokenizer: Tokenizer, result: Callable[[], GPT2], place: Path
) -> Verification:
    """Compare the source's weights with the result, which is opened last. Only one of the two is in memory at a time.

    place: of the result, for errors. Raises ModelError.
    """
    config = weights.config
    ids = [token for token in encoded(tokenizer) if token < config.vocab_size][: min(MAX_TOKENS, config.n_positions)]
    if len(ids) < 2:
        raise ModelError(f"{place}: its tokenizer cannot encode the text of --verify; convert without --verify")
    tokens = mx.array(ids)
    before = _logits(build_decoder(weights, packed=False), tokens)
    after = _logits(result(), tokens)
    difference = float(mx.abs(before - after).max())
    return Verification(len(ids), difference, _perplexity(before, tokens), _perplexity(after, tokens))


def encoded(tokenizer: Tokenizer) -> list[int]:
    """The ids of the text or, where the vocabulary has no token for some of its characters, of the others."""
    try:
        return tokenizer.encode(TEXT)
    except OptionError:
        ids: list[int] = []
        for character in TEXT:
            with suppress(OptionError):
                ids += tokenizer.encode(character)
        return ids


def _logits(decoder: GPT2, tokens: mx.array) -> mx.array:
    # One memory layout for both sides: products with transposed weights round differently.
    decoder.update(tree_map(mx.contiguous, decoder.parameters()))
    logits = decoder(tokens[None])[0].astype(mx.float32)  # [n, V]
    mx.eval(logits)
    return logits


def _perplexity(logits: mx.array, tokens: mx.array) -> float:
    chosen = mx.take_along_axis(log_softmax(logits)[:-1], tokens[1:, None], axis=-1)
    loss = -float(chosen.mean())
    return math.exp(loss) if loss < 700 else math.inf
