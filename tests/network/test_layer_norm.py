"""LayerNorm's overflow is seen: weights with a flipped bit never give quietly wrong logits."""

import random

import mlx.core as mx
import numpy as np
import torch

from mlxgen.network.cache import make_cache
from mlxgen.network.layer_norm import WatchfulLayerNorm

from ..support import oracles
from ..support.models import TinyGPT2, tiny_gpt2

CONTEXT = [5, 9, 200, 31, 5, 77, 140, 3, 18, 64]


def with_a_flipped_bit(tiny: TinyGPT2, rng: random.Random) -> TinyGPT2:
    """One bit of one number's exponent changed; of the embedding, in a row that the context reads early."""
    weights = {name: array.copy() for name, array in tiny.weights.items()}
    name = rng.choice(sorted(weights))
    array = weights[name]
    at = tuple(rng.randrange(size) for size in array.shape)
    if name.startswith("model.w"):
        at = (CONTEXT[2] if "wte" in name else 2, at[1])
    array.view(np.uint32)[at] ^= np.uint32(1 << rng.choice((28, 29, 30, 30, 30)))
    return TinyGPT2(tiny.entries, weights, tiny.tokenizer)


def test_damaged_weights_give_nan_or_the_right_probabilities() -> None:
    rng, tiny = random.Random(0), tiny_gpt2()
    n_refused = 0
    for _ in range(100):
        flipped = with_a_flipped_bit(tiny, rng)
        decoder, ids = flipped.model().decoder, mx.array([CONTEXT])
        cache = make_cache(flipped.config.n_layer)
        for part in (ids[:, :4], ids[:, 4:9], ids[:, 9:]):
            split = decoder(part, cache)[0, -1]
        with np.errstate(all="ignore"):
            exact = {name: array.astype(np.float64) for name, array in flipped.weights.items()}
            expected = oracles.softmax(oracles.numpy_logits(exact, flipped.config, CONTEXT)[-1])
        for logits in (decoder(ids)[0, -1], split):
            if mx.isfinite(logits).all().item():
                assert np.allclose(oracles.softmax(np.array(logits).astype(np.float64)), expected, atol=1e-4)
            else:
                n_refused += 1
    assert 20 < n_refused < 180


def test_ordinary_numbers_come_out_as_of_torch_in_every_type() -> None:
    x = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32) * 1000
    expected = torch.nn.functional.layer_norm(torch.tensor(x), (8,)).numpy()
    norm = WatchfulLayerNorm(8)
    assert np.allclose(np.array(norm(mx.array(x))), expected, atol=1e-5)
    halves = norm(mx.array(x).astype(mx.float16)).astype(mx.float32)
    assert np.allclose(np.array(halves), expected, atol=1e-2)
