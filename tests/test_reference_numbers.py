"""Numbers that can be worked out by hand, from the texts that describe the loop."""

from __future__ import annotations

import math

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxgen.network.cache import make_cache
from mlxgen.network.config import GPT2Config
from mlxgen.sampling.samplers import greedy

HIDDEN = mx.array([[1.0, 2.0]])  # [1, D]
HEAD = mx.array([[1.0, 0.0, -1.0], [0.0, 1.0, 0.0]])  # [D, V]


def test_one_hidden_vector_through_the_output_head():
    logits = HIDDEN @ HEAD
    assert logits.tolist() == [[1.0, 2.0, -1.0]]
    assert mx.softmax(logits, axis=-1).tolist()[0] == pytest.approx([0.2595, 0.7054, 0.0351], abs=5e-5)
    assert greedy(logits).tolist() == [1]


@pytest.mark.parametrize("tied", [True, False])
def test_the_same_numbers_through_the_decoders_own_head(tied):
    config = GPT2Config(vocab_size=3, n_positions=4, n_embd=2, n_layer=1, n_head=1, n_inner=8, tie_word_embeddings=tied)
    from mlxgen.network.decoder import GPT2

    decoder = GPT2(config)
    name = "model.wte.weight" if tied else "lm_head.weight"
    decoder.load_weights([(name, HEAD.T)], strict=False)
    logits = decoder.head(HIDDEN[None])[0]
    np.testing.assert_allclose(np.array(logits), [[1.0, 2.0, -1.0]], atol=1e-6)


def test_two_prompt_tokens_leave_two_positions_and_each_pass_one_more(model):
    cache = make_cache(model.config.n_layer)
    model.decoder(mx.array([[10, 20]]), cache)
    assert [layer.offset for layer in cache] == [2, 2]
    for positions in (3, 4):
        model.decoder(mx.array([[30]]), cache)
        assert [layer.offset for layer in cache] == [positions, positions]


@pytest.mark.parametrize(("probability", "loss"), [(0.5, 0.693), (0.1, 2.303)])
def test_the_loss_is_the_negative_log_of_the_probability(probability, loss):
    logits = mx.log(mx.array([[probability, 1 - probability]]))
    got = nn.losses.cross_entropy(logits, mx.array([0])).item()
    assert got == pytest.approx(-math.log(probability), abs=1e-6)
    assert got == pytest.approx(loss, abs=5e-4)


def test_cache_bytes_per_token_of_a_96_layer_12288_wide_model():
    config = GPT2Config(n_layer=96, n_embd=12_288, n_head=96)
    assert config.cache_bytes_per_token(2) == 4_718_592


def test_the_real_cache_takes_what_the_config_says(model):
    cache = make_cache(model.config.n_layer)
    model.decoder(mx.zeros((1, 64), dtype=mx.int32), cache)
    capacity = cache[0].keys.shape[2]
    assert sum(layer.nbytes for layer in cache) == capacity * model.config.cache_bytes_per_token(4)
