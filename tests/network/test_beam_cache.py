"""The cache of a beam search: each beam reads the prompt and its own text, however the beams are reordered."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxgen.model import Model
from mlxgen.network.beam_cache import BeamCache
from mlxgen.network.cache import KVCache

from ..support.oracles import numpy_logits, parameters


@pytest.mark.parametrize("beams", [1, 3, 9])
def test_each_beams_logits_are_those_of_its_own_text_alone(model: Model, beams: int) -> None:
    rng = np.random.default_rng(beams)
    weights, size = parameters(model.decoder), model.config.vocab_size
    prompt = rng.integers(0, size, 11).tolist()
    caches = [KVCache() for _ in range(model.config.n_layer)]
    model.decoder(mx.array([prompt]), caches)
    cache, texts = BeamCache(caches, beams), [prompt] * beams
    for _ in range(12):
        parents, tokens = rng.integers(0, beams, beams).tolist(), rng.integers(0, size, beams).tolist()
        texts = [[*texts[parent], token] for parent, token in zip(parents, tokens, strict=True)]
        cache.begin_step(mx.array(parents))
        logits = np.array(model.decoder(mx.array([tokens]), cache.layers)[0])
        for row, text in zip(logits, texts, strict=True):
            assert np.allclose(row, numpy_logits(weights, model.config, text)[-1], atol=1e-4)


def test_the_prompt_is_there_once_and_each_step_adds_an_entry_per_beam(model: Model) -> None:
    caches = [KVCache() for _ in range(model.config.n_layer)]
    model.decoder(mx.array([[5] * 40]), caches)
    before = sum(layer.nbytes for layer in caches)
    cache = BeamCache(caches, 4)
    for _ in range(5):
        cache.begin_step(mx.array([0, 0, 1, 1]))
        mx.eval(model.decoder(mx.array([[1, 2, 3, 4]]), cache.layers))
    assert [layer.entries.offset for layer in cache.layers] == [40 + 5 * 4] * model.config.n_layer
    after = sum(layer.entries.nbytes for layer in cache.layers)
    assert after == before  # within the room that the prompt's own cache had
