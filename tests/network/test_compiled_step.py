"""The compiled step against the plain one and NumPy, and when it is used. The CPU compiles it with a C++ compiler."""

from __future__ import annotations

import gc
import io
import shutil
import weakref

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen import device
from mlxgen.generation.session import Session
from mlxgen.network import compiled_step
from mlxgen.network.cache import make_cache
from mlxgen.network.compiled_step import CompiledStep
from mlxgen.network.decoder import GPT2

from ..conftest import needs_compiler
from ..support import oracles


@pytest.fixture
def compiling(monkeypatch):
    """Steps are compiled, and counted."""
    calls = []

    class Counted(CompiledStep):
        def __call__(self, ids, cache):
            calls.append(self)
            return super().__call__(ids, cache)

    monkeypatch.setattr(device, "compiles_steps", lambda: True)
    monkeypatch.setattr(compiled_step, "CompiledStep", Counted)
    monkeypatch.setattr(compiled_step, "_steps", {})
    return calls


@pytest.fixture
def traces(monkeypatch):
    """An entry for each time that Python goes through the layers for one token."""
    seen, hidden = [], GPT2.hidden

    def counted(decoder, ids, cache=None):
        if ids.shape[1] == 1:
            seen.append(ids)
        return hidden(decoder, ids, cache)

    monkeypatch.setattr(GPT2, "hidden", counted)
    return seen


@needs_compiler
@settings(max_examples=30)
@given(
    prompt=st.lists(st.integers(0, 278), min_size=1, max_size=20),
    more=st.lists(st.integers(0, 278), min_size=1, max_size=20),
    window=st.sampled_from([(None, 0), (7, 0), (9, 3), (30, 2)]),
)
def test_its_logits_are_those_of_one_pass_with_any_cache(model, prompt, more, window):
    max_size, keep = window
    cache = make_cache(model.config.n_layer, max_size, keep)
    model.decoder.hidden(mx.array([prompt]), cache)
    step, context = CompiledStep(model.decoder), list(prompt)
    weights = oracles.parameters(model.decoder)
    for token in more:
        logits = model.decoder.head(step(mx.array([[token]]), cache))[0, 0]
        context.append(token)
        assert cache[0].offset == len(context)
    expected = oracles.numpy_logits(weights, model.config, context, max_size, keep)[-1]
    np.testing.assert_allclose(np.array(logits), expected, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize("head_dim", [64, 80])
def test_with_the_head_sizes_of_published_models(build_model, compiling, head_dim):
    model = build_model(n_embd=2 * head_dim, n_head=2)
    got = mlxgen.generate(model, [1, 2, 3], max_tokens=20, temperature=0, ignore_eos=True)
    assert len(compiling) == 19
    assert got.tokens == oracles.numpy_greedy(model, [1, 2, 3], 20)


@needs_compiler
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_kv_size": 9, "keep": 2},
        {"overflow": "slide", "keep": 3},
        {"lookahead": True},
        {"lookahead": True, "max_kv_size": 7, "overflow": "slide"},
    ],
    ids=str,
)
def test_the_loop_gives_the_same_tokens_with_it(model, compiling, monkeypatch, options):
    options = {"max_tokens": 90 if options.get("overflow") else 50, "seed": 4, "ignore_eos": True, **options}
    with_it = mlxgen.generate(model, [1, 2, 3], **options)
    assert len(compiling) > 10 and len(set(compiling)) == 1  # one function for the whole answer
    monkeypatch.setattr(device, "compiles_steps", lambda: False)
    assert mlxgen.generate(model, [1, 2, 3], **options).tokens == with_it.tokens


@needs_compiler
def test_a_layer_writes_its_keys_and_values_at_once(model):
    cache = make_cache(model.config.n_layer)
    mx.eval(model.decoder.hidden(mx.array([[1, 2]]), cache))
    graph = io.StringIO()
    mx.export_to_dot(graph, CompiledStep(model.decoder)(mx.array([[3]]), cache))
    assert graph.getvalue().count("DynamicSliceUpdate") == model.config.n_layer


@needs_compiler
def test_it_is_traced_once_for_all_answers_of_a_model(build_model, compiling, traces):
    model = build_model()
    for prompt in ([1, 2, 3], [4, 5], [6, 7, 8]):
        mlxgen.generate(model, prompt, max_tokens=20, ignore_eos=True)
    talk = Session(model)
    talk.generate([1, 2], max_tokens=5, ignore_eos=True)
    talk.generate([3, 4], max_tokens=5, ignore_eos=True)
    assert len(compiling) > 60 and len(traces) == 1


@needs_compiler
def test_a_trace_takes_it_as_generate_does(model, compiling):
    traced = mlxgen.trace(model, [1, 2, 3], steps=12, seed=4, ignore_eos=True, greedy_path=False)
    steps = len(compiling)
    generated = mlxgen.generate(model, [1, 2, 3], max_tokens=12, seed=4, ignore_eos=True)
    assert steps == len(compiling) - steps == 11 and len(set(compiling)) == 1
    assert [step.chosen.token for step in traced.steps] == generated.tokens


@needs_compiler
def test_it_does_not_keep_a_model_alive(build_model, compiling):
    model = build_model()
    mlxgen.generate(model, [1, 2], max_tokens=5)
    decoder = weakref.ref(model.decoder)
    assert compiled_step._steps
    compiling.clear()
    del model
    gc.collect()
    assert decoder() is None and not compiled_step._steps


def replace(decoder):
    decoder.update({"model": {"wpe": {"weight": -decoder.model.wpe.weight}}})


def write_into(decoder):
    decoder.model.h[1].mlp.c_fc.weight[3] = 2.0


@needs_compiler
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("change", [replace, write_into])
def test_weights_that_change_between_answers_are_seen(build_model, compiling, change, dtype):
    model = build_model()
    model.decoder.set_dtype(dtype)
    talk = Session(model)
    talk.generate([1, 2, 3], max_tokens=5, temperature=0)
    change(model.decoder)
    talk.rewind(len(talk.tokens))
    fresh = Session(model)
    assert (
        talk.generate([1, 2, 3], max_tokens=20, temperature=0).tokens
        == fresh.generate([1, 2, 3], max_tokens=20, temperature=0).tokens
    )
    assert len(set(compiling)) == 2
    if dtype == mx.float32:
        assert talk.tokens[3:] == oracles.numpy_greedy(model, [1, 2, 3], 20)


@needs_compiler
def test_a_fork_does_not_write_into_the_others_cache(model, compiling):
    one = Session(model)
    one.generate([1, 2, 3], max_tokens=4, temperature=0)
    two, plain = one.fork(), Session(model)
    two.generate([9, 9], max_tokens=6, temperature=0)
    first = one.generate([5], max_tokens=6, temperature=0).tokens
    plain.extend(one.tokens[:-6])
    assert plain.generate(max_tokens=6, temperature=0).tokens == first


@needs_compiler
def test_a_cache_of_mlx_lm_takes_the_plain_step(model, compiling):
    from mlx_lm.models.cache import KVCache

    given_cache = Session(model, cache=[KVCache() for _ in model.decoder.layers])
    given_cache.generate([1, 2], max_tokens=5, seed=1)
    assert not compiling


@pytest.mark.parametrize(
    ("on_cpu", "wish", "compiler", "compiles"),
    [
        (False, None, None, True),
        (False, "off", None, False),
        (True, None, "/usr/bin/g++", False),
        (True, "on", "/usr/bin/g++", True),
        (True, "on", None, False),
    ],
)
def test_metal_compiles_and_the_cpu_where_it_is_asked_to_and_can(monkeypatch, on_cpu, wish, compiler, compiles):
    monkeypatch.setattr(device, "on_cpu", lambda: on_cpu)
    monkeypatch.setattr(shutil, "which", lambda name: compiler)
    monkeypatch.delenv("MLXGEN_COMPILE", raising=False)
    if wish:
        monkeypatch.setenv("MLXGEN_COMPILE", wish)
    assert device.compiles_steps() is compiles
