"""The invariant: for any prompt, any split into chunks and any cache, the logits are those of one written-out pass."""

from __future__ import annotations

from itertools import chain

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mlxgen.errors import OptionError
from mlxgen.network.cache import KVCache, RotatingKVCache, make_cache
from mlxgen.network.pair_cache import GROWTH

from ..support import oracles

# how far logits of about size 10 may be from float64's
TOLERANCE = {mx.float32: 1e-4, mx.float16: 0.1, mx.bfloat16: 0.8}


class Decoders(dict):
    """By compute type: the decoder, and its (rounded) weights for NumPy."""

    def __repr__(self):
        return "Decoders"  # not megabytes of weights in a failed example


@pytest.fixture(scope="module")
def decoders(build_model):
    found = Decoders()
    for dtype in TOLERANCE:
        decoder = build_model(seed=11).decoder
        decoder.set_dtype(dtype)
        found[dtype] = decoder, oracles.parameters(decoder)
    return found


def chunks_of(draw, ids):
    """A split of the ids into chunks of any sizes, single tokens among them often."""
    chunks, rest = [], list(ids)
    while rest:
        size = draw(st.one_of(st.just(1), st.integers(1, len(rest))))
        chunks.append(rest[:size])
        rest = rest[size:]
    return chunks


@st.composite
def cases(draw):
    ids = draw(st.lists(st.integers(0, 279), min_size=1, max_size=48))
    max_size = draw(st.one_of(st.none(), st.integers(1, 60)))
    keep = 0 if max_size is None else draw(st.integers(0, max_size - 1))
    return chunks_of(draw, ids), max_size, keep


def check(decoders, dtype, chunks, max_size, keep):
    decoder, weights = decoders[dtype]
    cache = make_cache(decoder.config.n_layer, max_size, keep)
    rows = [np.array(decoder(mx.array([chunk]), cache).astype(mx.float32))[0] for chunk in chunks]
    expected = oracles.numpy_logits(weights, decoder.config, list(chain(*chunks)), max_size, keep)
    compare(np.concatenate(rows), expected, TOLERANCE[dtype])
    assert cache[0].offset == len(expected)
    assert cache[0].size() == min(len(expected), max_size or len(expected))


def compare(got, expected, tolerance):
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)
    best = np.sort(expected, axis=-1)
    clear = best[:, -1] - best[:, -2] > 2 * tolerance  # the same best token, wherever rounding cannot decide it
    assert (got.argmax(axis=-1) == expected.argmax(axis=-1))[clear].all()


@settings(max_examples=250)
@given(cases())
def test_any_split_and_any_cache_give_the_logits_of_one_pass(decoders, case):
    check(decoders, mx.float32, *case)


@pytest.mark.parametrize("window", [(None, 0), (12, 3)])
@pytest.mark.parametrize("head_dim", [64, 80])
def test_with_the_head_sizes_of_published_models(build_model, head_dim, window):
    decoder = build_model(n_embd=2 * head_dim, n_head=2).decoder
    ids = np.random.default_rng(head_dim).integers(0, 279, 30).tolist()
    chunks = [ids[:9], ids[9:10], ids[10:11], ids[11:25], *([token] for token in ids[25:])]
    check({mx.float32: (decoder, oracles.parameters(decoder))}, mx.float32, chunks, *window)


@settings(max_examples=40)
@given(cases(), st.sampled_from([mx.float16, mx.bfloat16]))
def test_the_same_in_half_precision(decoders, case, dtype):
    check(decoders, dtype, *case)


@st.composite
def histories(draw):
    """Chunks added, positions taken back, and the state moved to a new cache, in any order."""
    max_size = draw(st.one_of(st.none(), st.integers(1, 12)))
    keep = 0 if max_size is None else draw(st.integers(0, max_size - 1))
    chunk = st.lists(st.integers(0, 279), min_size=1, max_size=9)
    actions = st.one_of(chunk, chunk, st.integers(1, 3), st.just("move"))
    return draw(st.lists(actions, min_size=1, max_size=10)), max_size, keep


@settings(max_examples=150)
@given(histories())
@example(([[1, 2, 3, 4, 5], 1, "move", 2, [6, 7]], 4, 0))
@example(([[1], [2], [3], [4], [5], 1, "move", [6]], 4, 1))
def test_positions_taken_back_are_as_if_never_processed(decoders, history):
    actions, max_size, keep = history
    decoder, weights = decoders[mx.float32]
    cache = make_cache(decoder.config.n_layer, max_size, keep)
    context, dropped, could = [], False, (0,)  # could: how many can be taken back, once one was dropped
    for action in actions:
        if action == "move":
            fresh = make_cache(decoder.config.n_layer, max_size, keep)
            for new, old in zip(fresh, cache, strict=True):
                new.state = old.state
            cache = fresh
            could = tuple({0, *could})  # a moved ring may not know that its newest position is still whole
        elif isinstance(action, list):
            if len(context) + len(action) > decoder.config.n_positions:
                break
            got = np.array(decoder(mx.array([action]), cache))[0]
            context += action
            dropped = dropped or (max_size is not None and len(context) > max_size)
            could = (1,)
            expected = oracles.numpy_logits(weights, decoder.config, context, max_size, keep)
            compare(got, expected[-len(action) :], 1e-4)
        else:
            taken = {layer.trim(action) for layer in cache}
            assert len(taken) == 1, "all layers agree"
            (n,) = taken
            assert n in [min(action, most) for most in could] if dropped else n == min(action, len(context))
            context = context[: len(context) - n]
            could = (0,) if n else could
        assert cache[0].offset == len(context)


@settings(max_examples=150)
@given(st.integers(1, 9), st.integers(0, 8), st.data())
def test_with_slack_a_chunks_own_positions_can_be_taken_back(decoders, max_size, keep, data):
    """All but its first, at any time; and memory is max_size and the slack."""
    keep = min(keep, max_size - 1)
    decoder, weights = decoders[mx.float32]
    cache = make_cache(decoder.config.n_layer, max_size, keep)
    context = []
    for _ in range(data.draw(st.integers(1, 8))):
        chunk = data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=6))
        if len(context) + len(chunk) > decoder.config.n_positions:
            break
        for layer in cache:
            layer.slack = len(chunk) - 1
        got = np.array(decoder(mx.array([chunk]), cache))[0]
        context += chunk
        expected = oracles.numpy_logits(weights, decoder.config, context, max_size, keep)
        compare(got, expected[-len(chunk) :], 1e-4)
        assert cache[0].keys.shape[2] <= max(max_size, GROWTH) + len(chunk) - 1
        assert cache[0].state[0].shape[2] <= max(max_size, GROWTH)
        once = data.draw(st.integers(0, len(chunk) - 1))
        for n in (once, data.draw(st.integers(0, len(chunk) - 1 - once))):
            assert {layer.trim(n) for layer in cache} == {n}
            context = context[: len(context) - n]
        assert cache[0].offset == len(context) and cache[0].size() == min(len(context), max_size)


@settings(max_examples=60)
@given(cases(), st.data())
def test_a_cache_goes_on_from_its_saved_state(decoders, case, data):
    chunks, max_size, keep = case
    decoder, weights = decoders[mx.float32]
    cache = make_cache(decoder.config.n_layer, max_size, keep)
    moved = data.draw(st.integers(0, len(chunks) - 1))
    for number, chunk in enumerate(chunks):
        if number == moved:
            fresh = make_cache(decoder.config.n_layer, max_size, keep)
            for new, old in zip(fresh, cache, strict=True):
                new.state = old.state
            cache = fresh
        last = np.array(decoder(mx.array([chunk]), cache))[0]
    expected = oracles.numpy_logits(weights, decoder.config, list(chain(*chunks)), max_size, keep)
    compare(last, expected[-len(chunks[-1]) :], 1e-4)


def positions(n, start=0, width=4):
    """Keys or values that say which position they are of: [1, 1, n, width]."""
    return mx.broadcast_to(mx.arange(start, start + n, dtype=mx.float32)[None, None, :, None], (1, 1, n, width))


def held(array):
    return sorted(array[0, 0, :, 0].tolist())


def test_a_rotating_cache_holds_its_pins_and_the_newest_and_no_more():
    cache = RotatingKVCache(6, keep=2)
    for position in range(40):
        keys, values = cache.update_and_fetch(positions(1, position), positions(1, position))
        newest = range(max(2, position - 3), position + 1) if position >= 2 else ()
        assert held(keys) == held(values) == [*range(min(position + 1, 2)), *newest]
        assert cache.keys.shape[2] <= 6


def test_memory_of_a_rotating_cache_is_bounded_whatever_the_chunks():
    cache = RotatingKVCache(300, keep=10)
    bytes_a_position = 2 * 4 * 4
    start = 0
    for n in (1, 500, 1, 1, 299, 40, 1, 700):
        keys, _ = cache.update_and_fetch(positions(n, start), positions(n, start))
        start += n
        assert cache.nbytes <= 300 * bytes_a_position
        assert keys.shape[2] <= 300 + n - 1


def test_a_plain_cache_grows_by_whole_steps():
    cache = KVCache()
    assert cache.empty()
    assert cache.nbytes == 0
    for n, capacity in ((1, GROWTH), (GROWTH - 1, GROWTH), (1, 2 * GROWTH), (3 * GROWTH, 5 * GROWTH)):
        cache.update_and_fetch(positions(n), positions(n))
        assert cache.keys.shape[2] == capacity
    assert not cache.empty()
    assert cache.offset == cache.size() == 4 * GROWTH + 1


def test_a_rotating_cache_larger_than_the_context_is_full_attention(decoders):
    decoder, _ = decoders[mx.float32]
    ids = mx.array([[1, 2, 3, 4, 5, 6, 7]])
    assert mx.allclose(decoder(ids, make_cache(2, 64, 5)), decoder(ids, make_cache(2)), atol=1e-5)


@pytest.mark.parametrize("max_size", [None, 5, 7, 50])
@pytest.mark.parametrize("keep", [0, 2])
@pytest.mark.parametrize("before", [0, 1, 3, 4, 5, 9])
@pytest.mark.parametrize("n", [1, 2, 6])
def test_a_mask_asked_for_as_an_array_is_the_written_one(max_size, keep, before, n):
    """Each query's row allows as many positions as the written mask does; pinned ones come first."""
    (cache,) = make_cache(1, max_size, keep)
    if before:
        cache.update_and_fetch(positions(before), positions(before))
    mask = np.array(cache.make_mask(n, return_array=True))
    keys, _ = cache.update_and_fetch(positions(n, before), positions(n, before))
    assert mask.shape == (n, keys.shape[2])
    written = oracles.written_mask(before + n, max_size, keep)[before:]
    if n > 1:
        order = [int(position) for position in keys[0, 0, :, 0].tolist()]
        assert (mask == written[:, order]).all()
    assert (mask.sum(axis=1) == written.sum(axis=1)).all()


def test_the_window_that_mlx_lm_asks_for_is_a_window():
    cache = KVCache()
    cache.update_and_fetch(positions(5), positions(5))
    mask = np.array(cache.make_mask(3, window_size=4))
    assert (mask == oracles.written_mask(8, max_size=4)[5:]).all()


@pytest.mark.parametrize(("max_size", "keep"), [(0, 0), (-1, 0), (4, 4), (4, 5), (4, -1)])
def test_sizes_that_make_no_cache_are_refused(max_size, keep):
    with pytest.raises(OptionError, match=r"keep|max_kv_size"):
        RotatingKVCache(max_size, keep)
