"""Numbers that can be worked out by hand, from the texts that describe the loop."""

from __future__ import annotations

import math
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

import mlxgen
from mlxgen.network.cache import make_cache
from mlxgen.network.config import GPT2Config
from mlxgen.network.decoder import GPT2
from mlxgen.sampling.samplers import greedy
from mlxgen.sampling.softmax import softmax

from .support.models import letter_tokenizer, tiny_gpt2

HIDDEN = mx.array([[1.0, 2.0]])  # [1, D]
HEAD = mx.array([[1.0, 0.0, -1.0], [0.0, 1.0, 0.0]])  # [D, V]


@pytest.mark.parametrize("tied", [True, False])
def test_one_hidden_vector_through_the_output_head(tied):
    config = GPT2Config(vocab_size=3, n_positions=4, n_embd=2, n_layer=1, n_head=1, n_inner=8, tie_word_embeddings=tied)
    decoder = GPT2(config)
    decoder.load_weights([("model.wte.weight" if tied else "lm_head.weight", HEAD.T)], strict=False)
    logits = decoder.head(HIDDEN)
    np.testing.assert_allclose(np.array(logits), [[1.0, 2.0, -1.0]], atol=1e-6)
    np.testing.assert_allclose(np.array(softmax(logits)), [[0.2595, 0.7054, 0.0351]], atol=5e-5)
    assert greedy(logits).tolist() == [1]


def test_two_prompt_tokens_leave_two_positions_and_each_pass_one_more(model):
    cache = make_cache(model.config.n_layer)
    model.decoder(mx.array([[10, 20]]), cache)
    assert [layer.offset for layer in cache] == [2, 2]
    for positions in (3, 4):
        model.decoder(mx.array([[30]]), cache)
        assert [layer.offset for layer in cache] == [positions, positions]


@pytest.fixture(scope="module")
def half():
    """A model that gives "a" the probability 0.5 after any text, and 0.1 to each of the other five tokens."""
    tiny = tiny_gpt2(tokenizer=letter_tokenizer("abc"), tie_word_embeddings=False)
    weights = dict(tiny.weights)
    weights["model.ln_f.weight"] = 0 * weights["model.ln_f.weight"]
    weights["model.ln_f.bias"] = np.eye(1, tiny.config.n_embd, dtype=np.float32)[0]  # so every hidden state is this
    weights["lm_head.weight"] = np.zeros_like(weights["lm_head.weight"])
    weights["lm_head.weight"][:, 0] = np.log([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
    return replace(tiny, weights=weights).model()


@pytest.mark.parametrize(("text", "loss"), [("a", 0.693), ("b", 2.303), ("ab", (0.693 + 2.303) / 2), ("caac", 1.498)])
def test_the_cross_entropy_is_the_mean_negative_log_of_the_probabilities(half, text, loss):
    assert mlxgen.score(half, text).loss == pytest.approx(loss, abs=5e-4)


def test_the_perplexity_is_the_number_of_equal_choices(half):
    assert mlxgen.score(half, "aaaa").perplexity == pytest.approx(2, abs=1e-4)
    assert mlxgen.score(half, "bcbc").perplexity == pytest.approx(10, abs=1e-4)


def test_a_steps_logprob_is_the_log_of_its_probability(half):
    for step in mlxgen.stream(half, "b", max_tokens=3, temperature=0):
        assert step.text == "a" and step.logprob == pytest.approx(math.log(0.5), abs=1e-6)


def test_cache_bytes_per_token_of_a_96_layer_12288_wide_model():
    config = GPT2Config(n_layer=96, n_embd=12_288, n_head=96)
    assert config.cache_bytes_per_token(2) == 4_718_592


def test_the_real_cache_takes_what_the_config_says(model):
    cache = make_cache(model.config.n_layer)
    model.decoder(mx.zeros((1, 64), dtype=mx.int32), cache)
    capacity = cache[0].keys.shape[2]
    assert sum(layer.nbytes for layer in cache) == capacity * model.config.cache_bytes_per_token(4)
