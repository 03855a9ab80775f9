"""mlx-lm and this project on each other's parts: the same greedy tokens every way."""

from __future__ import annotations

import copy
import importlib

import mlx.core as mx
import numpy as np
import pytest

from mlxgen.generation.answer import generate
from mlxgen.generation.session import Session
from mlxgen.network.cache import KVCache, RotatingKVCache, make_cache

from .support import oracles

theirs = pytest.importorskip("mlx_lm.models.cache")
N = 24
PROMPT = [11, 240, 3, 77, 150]
GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": N}


@pytest.fixture(scope="module")
def generate_step():
    return importlib.import_module("mlx_lm.generate").generate_step


@pytest.fixture(scope="module")
def tokens(model):
    """By NumPy, with whole passes."""
    return oracles.numpy_greedy(model, PROMPT, N)


def run(generate_step, model, prompt=PROMPT, n=N, **options):
    return [int(token) for token, _ in generate_step(mx.array(prompt), model.decoder, max_tokens=n, **options)]


def both_caches(kind, layers):
    """Ours and mlx-lm's of the same kind."""
    if kind is None:
        return [KVCache() for _ in range(layers)], [theirs.KVCache() for _ in range(layers)]
    size, keep = kind
    return (
        [RotatingKVCache(size, keep) for _ in range(layers)],
        [theirs.RotatingKVCache(size, keep) for _ in range(layers)],
    )


def test_mlx_lms_loop_on_our_decoder_with_its_own_cache(generate_step, model, tokens):
    assert run(generate_step, model) == tokens
    assert run(generate_step, model, prefill_step_size=2) == tokens


@pytest.mark.parametrize("chunk", [2048, 2])
def test_mlx_lms_loop_with_our_cache(generate_step, model, tokens, chunk):
    cache = make_cache(model.config.n_layer)
    assert run(generate_step, model, prompt_cache=cache, prefill_step_size=chunk) == tokens


def test_mlx_lms_own_max_kv_size_works_on_our_decoder(generate_step, model):
    """It pins 4 positions of a rotating cache, as keep=4 does."""
    expected = generate(model, PROMPT, max_kv_size=9, keep=4, **GREEDY).tokens
    assert run(generate_step, model, max_kv_size=9) == expected


@pytest.mark.parametrize("kind", [(100, 0), (9, 0), (9, 4), (6, 5)])
def test_rotating_caches_of_both_sides_give_the_same_tokens_in_both_loops(generate_step, model, kind):
    expected = generate(model, PROMPT, max_kv_size=kind[0], keep=kind[1], **GREEDY).tokens
    for cache in both_caches(kind, model.config.n_layer):
        assert run(generate_step, model, prompt_cache=copy.deepcopy(cache)) == expected
        session = Session(model, cache=cache)
        session.extend(PROMPT)
        assert [step.token for step in session.stream(**GREEDY)] == expected


@pytest.mark.parametrize("kind", [None, (9, 0), (9, 4)])
@pytest.mark.parametrize("leave_after", [1, 3, 8])
def test_our_session_on_mlx_lms_cache_left_early_goes_on(model, kind, leave_after):
    _, cache = both_caches(kind, model.config.n_layer)
    options = {} if kind is None else {"max_kv_size": kind[0], "keep": kind[1]}
    expected = generate(model, PROMPT, **options, **GREEDY).tokens
    session = Session(model, cache=cache)
    session.extend(PROMPT)
    steps = session.stream(**GREEDY)
    got = [next(steps).token for _ in range(leave_after)]
    steps.close()
    assert session.cache[0].offset == len(session.tokens) - 1
    got += [step.token for step in session.stream(**{**GREEDY, "max_tokens": N - leave_after})]
    assert got == expected


@pytest.mark.parametrize("kind", [None, (100, 0), (9, 0), (9, 4)])
@pytest.mark.parametrize("n_prompt", [1, 5, 9, 10, 30])
def test_prompt_cache_files_carry_our_caches(generate_step, model, tmp_path, kind, n_prompt):
    """Ours, saved by mlx-lm and opened by it, goes on as ours would have; put back into ours, it does too."""
    prompt = np.random.default_rng(n_prompt).integers(0, 282, n_prompt).tolist()
    ours, _ = both_caches(kind, model.config.n_layer)
    model.decoder(mx.array([prompt]), ours)
    path = str(tmp_path / "prompt.safetensors")
    theirs.save_prompt_cache(path, ours, {"of": "a test"})
    loaded, metadata = theirs.load_prompt_cache(path, return_metadata=True)
    assert metadata == {"of": "a test"}
    assert [type(layer) for layer in loaded] == [getattr(theirs, type(layer).__name__) for layer in ours]
    back, _ = both_caches(kind, model.config.n_layer)
    for layer, saved in zip(back, loaded, strict=True):
        layer.state = saved.state
    weights = oracles.parameters(model.decoder)
    size, keep = kind or (None, 0)
    for token in (7, 8, 9):
        prompt.append(token)
        expected = oracles.numpy_logits(weights, model.config, prompt, size, keep)[-1]
        for cache in (ours, loaded, back):
            got = np.array(model.decoder(mx.array([[token]]), cache))[0, -1]
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


def test_an_empty_cache_can_be_saved(model, tmp_path):
    path = str(tmp_path / "empty.safetensors")
    theirs.save_prompt_cache(path, make_cache(model.config.n_layer))
    loaded = theirs.load_prompt_cache(path)
    assert [layer.empty() for layer in loaded] == [True] * model.config.n_layer


@pytest.mark.parametrize("kind", [(9, 0), (9, 4)])
@pytest.mark.parametrize("n_prompt", [4, 9, 20])
def test_what_mlx_lms_ring_holds_goes_on_in_ours(model, kind, n_prompt):
    """Whole prompts at once too, after which mlx-lm's ring holds more than its size."""
    prompt = np.random.default_rng(n_prompt).integers(0, 282, n_prompt).tolist()
    ours, other = both_caches(kind, model.config.n_layer)
    head = prompt[:1] if n_prompt == 4 else []
    if head:
        model.decoder(mx.array([head]), other)
    # one by one where the ring turns: in a chunk mlx-lm's mask does not know pinned positions
    for part in [prompt[len(head) :]] if n_prompt <= 9 else [[token] for token in prompt]:
        model.decoder(mx.array([part]), other)
    for layer, saved in zip(ours, other, strict=True):
        layer.state = saved.state
    weights = oracles.parameters(model.decoder)
    for part in ([5], [6, 7, 8], [9]):
        prompt += part
        expected = oracles.numpy_logits(weights, model.config, prompt, *kind)[-len(part) :]
        got = np.array(model.decoder(mx.array([part]), ours))[0]
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


def test_a_chunk_longer_than_mlx_lms_ring_goes_on_in_ours(model):
    prompt = list(range(20, 40))
    ours, other = both_caches((9, 0), model.config.n_layer)
    model.decoder(mx.array([prompt]), other)
    assert other[0].keys.shape[2] > 9
    for layer, saved in zip(ours, other, strict=True):
        layer.state = saved.state
    weights = oracles.parameters(model.decoder)
    for part in ([5], [6, 7, 8], [9]):
        prompt += part
        expected = oracles.numpy_logits(weights, model.config, prompt, 9)[-len(part) :]
        got = np.array(model.decoder(mx.array([part]), ours))[0]
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


def test_trimming_through_mlx_lm(model, tokens):
    cache = make_cache(model.config.n_layer)
    model.decoder(mx.array([[*PROMPT, 1, 2, 3]]), cache)
    assert theirs.can_trim_prompt_cache(cache)
    assert theirs.trim_prompt_cache(cache, 4) == 4
    assert cache[0].offset == len(PROMPT) - 1
    logits = model.decoder(mx.array([PROMPT[-1:]]), cache)
    assert int(logits[0, -1].argmax()) == tokens[0]


def test_mlx_lm_opens_our_weights_as_its_own_gpt2(model, tokens, generate_step):
    """The parameter names are mlx-lm's: its decoder takes ours as they are."""
    from mlx.utils import tree_flatten
    from mlx_lm.models import gpt2

    c = model.config
    args = gpt2.ModelArgs(
        model_type="gpt2",
        n_ctx=c.n_positions,
        n_embd=c.n_embd,
        n_head=c.n_head,
        n_layer=c.n_layer,
        n_positions=c.n_positions,
        layer_norm_epsilon=c.layer_norm_epsilon,
        vocab_size=c.vocab_size,
    )
    other = gpt2.Model(args)
    other.load_weights(tree_flatten(model.decoder.parameters()), strict=True)
    ids = mx.array([PROMPT])
    np.testing.assert_allclose(np.array(other(ids)), np.array(model.decoder(ids)), rtol=0, atol=1e-4)
    for cache in (None, make_cache(c.n_layer)):
        got = [int(token) for token, _ in generate_step(mx.array(PROMPT), other, max_tokens=N, prompt_cache=cache)]
        assert got == tokens
