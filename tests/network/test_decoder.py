"""The decoder against transformers in float32 and against NumPy in float64."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

import mlxgen
from mlxgen.errors import ContextError
from mlxgen.generation.answer import generate
from mlxgen.network.cache import make_cache
from mlxgen.network.config import ACTIVATIONS
from mlxgen.network.decoder import GPT2
from mlxgen.weights.layouts import decoder_shapes

from ..support import oracles
from ..support.models import LAYOUTS, tiny_gpt2

N_GREEDY = 200
TABLE = {"n_positions": 256}
CONFIGS = {
    "gelu_new, tied": {"activation_function": "gelu_new"},
    "gelu, untied": {"activation_function": "gelu", "tie_word_embeddings": False},
    "gelu_pytorch_tanh, n_inner": {"activation_function": "gelu_pytorch_tanh", "n_inner": 48},
    "gelu_fast, inverse layer scaling": {
        "activation_function": "gelu_fast",
        "scale_attn_by_inverse_layer_idx": True,
        "n_layer": 3,
    },
    "quick_gelu, upcast": {"activation_function": "quick_gelu", "reorder_and_upcast_attn": True},
    "relu, one layer, one head": {"activation_function": "relu", "n_layer": 1, "n_head": 1},
    "silu, unscaled attention": {"activation_function": "silu", "scale_attn_weights": False, "n_layer": 1},
    "swish, wide epsilon": {"activation_function": "swish", "layer_norm_epsilon": 1e-2, "n_layer": 1},
    "tanh, untied": {"activation_function": "tanh", "tie_word_embeddings": False, "n_head": 8, "n_layer": 1},
    "twelve layers, twelve heads": {"n_layer": 12, "n_head": 12, "n_embd": 24},
    "twelve layers, one head, all switches": {
        "n_layer": 12,
        "n_head": 1,
        "n_embd": 24,
        "scale_attn_by_inverse_layer_idx": True,
        "reorder_and_upcast_attn": True,
        "tie_word_embeddings": False,
        "activation_function": "gelu",
        "n_inner": 40,
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_200_greedy_tokens_are_those_of_transformers_from_every_layout(name, tmp_path):
    tiny = tiny_gpt2(1, **TABLE, **CONFIGS[name])
    config, theirs = tiny.config, tiny.torch()
    rng = np.random.default_rng(2)
    context = rng.integers(0, config.vocab_size, 100).tolist()
    prompt = rng.integers(0, config.vocab_size, 7).tolist()
    expected = oracles.torch_logits(theirs, context)
    tokens = oracles.torch_greedy(theirs, prompt, N_GREEDY)
    first, *others = (mlxgen.load(str(tiny.write(tmp_path / layout, layout))) for layout in LAYOUTS)
    np.testing.assert_allclose(np.array(first.decoder(mx.array([context])))[0], expected, rtol=0, atol=1e-4)
    got = generate(first, prompt, max_tokens=N_GREEDY, temperature=0, ignore_eos=True)
    assert got.tokens == tokens
    parameters = dict(tree_flatten(first.decoder.parameters()))
    for other in others:  # the same weights, so the same logits and tokens
        theirs = dict(tree_flatten(other.decoder.parameters()))
        assert theirs.keys() == parameters.keys()
        assert all(mx.array_equal(array, parameters[name]) for name, array in theirs.items())


def test_a_folder_that_transformers_saved_gives_its_logits_and_tokens(tmp_path):
    tiny = tiny_gpt2(3, **TABLE)
    theirs = tiny.torch()
    theirs.save_pretrained(tmp_path)
    tiny.tokenizer.save(str(tmp_path / "tokenizer.json"))
    ours = mlxgen.load(str(tmp_path))
    prompt = [5, 70, 33]
    np.testing.assert_allclose(
        np.array(ours.decoder(mx.array([prompt])))[0], oracles.torch_logits(theirs, prompt), rtol=0, atol=1e-4
    )
    got = generate(ours, prompt, max_tokens=N_GREEDY, temperature=0, ignore_eos=True)
    assert got.tokens == oracles.torch_greedy(theirs, prompt, N_GREEDY)


@pytest.mark.parametrize("name", CONFIGS)
def test_numpy_in_float64_and_transformers_agree(name):
    tiny = tiny_gpt2(4, **CONFIGS[name])
    ids = np.random.default_rng(5).integers(0, tiny.config.vocab_size, 20).tolist()
    expected = oracles.torch_logits(tiny.torch(), ids)
    np.testing.assert_allclose(oracles.numpy_logits(tiny.weights, tiny.config, ids), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("head_dim", [64, 80])  # on Metal, attention has a fused kernel for one position of 64 alone
def test_with_the_head_sizes_of_published_models(head_dim):
    tiny = tiny_gpt2(9, n_embd=2 * head_dim, n_head=2)
    ids = np.random.default_rng(6).integers(0, tiny.config.vocab_size, 40).tolist()
    expected = oracles.torch_logits(tiny.torch(), ids)
    np.testing.assert_allclose(np.array(tiny.model().decoder(mx.array([ids])))[0], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_each_activation_against_numpy(activation, build_model):
    model = build_model(seed=6, activation_function=activation)
    ids = [1, 2, 3, 250, 7, 7]
    expected = oracles.numpy_logits(oracles.parameters(model.decoder), model.config, ids)
    np.testing.assert_allclose(np.array(model.decoder(mx.array([ids])))[0], expected, rtol=0, atol=1e-4)


def test_rows_of_a_batch_do_not_see_each_other(model):
    rows = np.random.default_rng(7).integers(0, model.config.vocab_size, (3, 11))
    logits = np.array(model.decoder(mx.array(rows)))
    assert logits.shape == (3, 11, model.config.vocab_size)
    weights = oracles.parameters(model.decoder)
    for row, ids in enumerate(rows):
        expected = oracles.numpy_logits(weights, model.config, ids)
        np.testing.assert_allclose(logits[row], expected, rtol=0, atol=1e-4)


def test_hidden_then_head_is_the_whole(model):
    ids = mx.array([[3, 1, 4, 1, 5]])
    hidden = model.decoder.hidden(ids)
    assert hidden.shape == (1, 5, model.config.n_embd)
    assert mx.array_equal(model.decoder.head(hidden), model.decoder(ids))


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_have_the_names_and_shapes_that_checkpoints_are_matched_to(tied, build_model):
    decoder = build_model(tie_word_embeddings=tied, n_inner=48).decoder
    shapes = {name: array.shape for name, array in tree_flatten(decoder.parameters())}
    assert shapes == decoder_shapes(decoder.config)


def test_no_position_past_the_table_is_read(model):
    full = mx.zeros((1, model.config.n_positions), dtype=mx.int32)
    assert model.decoder(full).shape[1] == model.config.n_positions
    with pytest.raises(ContextError, match="table of 64"):
        model.decoder(mx.zeros((1, model.config.n_positions + 1), dtype=mx.int32))
    cache = make_cache(model.config.n_layer)
    model.decoder(full, cache)
    with pytest.raises(ContextError, match="position 64 "):
        model.decoder(mx.array([[1]]), cache)


@pytest.mark.parametrize(("dtype", "tolerance"), [(mx.float16, 0.05), (mx.bfloat16, 0.4)])
@pytest.mark.parametrize("upcast", [True, False])
def test_half_precision_stays_near(dtype, tolerance, upcast, build_model):
    model = build_model(seed=8, reorder_and_upcast_attn=upcast)
    model.decoder.set_dtype(dtype)
    ids = [9, 8, 7, 6, 5, 4]
    logits = model.decoder(mx.array([ids]))
    expected = oracles.numpy_logits(oracles.parameters(model.decoder), model.config, ids)
    np.testing.assert_allclose(np.array(logits)[0], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_not_rounded_to_16_bits(dtype, tied, build_model):
    decoder = build_model(seed=8, tie_word_embeddings=tied).decoder
    decoder.set_dtype(dtype)
    hidden = 30 * decoder.hidden(mx.array([[9, 8, 7, 6]]))
    logits = decoder.head(hidden)
    assert hidden.dtype == logits.dtype == mx.float32
    weight = oracles.parameters(decoder)["model.wte.weight" if tied else "lm_head.weight"]
    exact = np.array(hidden, dtype=np.float64) @ weight.T
    assert np.abs(exact).max() > 64  # where neighbouring numbers of 16 bits are 0.06 or 0.5 apart
    np.testing.assert_allclose(np.array(logits), exact, rtol=0, atol=1e-3)


def test_the_decoder_trains_as_any_module(build_model):
    import mlx.nn as nn

    decoder = build_model().decoder
    ids = mx.array([[1, 2, 3, 4]])

    def loss(module: GPT2) -> mx.array:
        return nn.losses.cross_entropy(module(ids[:, :-1]), ids[:, 1:], reduction="mean")

    _, gradients = nn.value_and_grad(decoder, loss)(decoder)
    assert all(mx.isfinite(g).all() and mx.abs(g).max() > 0 for _, g in tree_flatten(gradients))
