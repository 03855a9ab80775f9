"""Weights in panels give what the plain layers give, for any shape and number of rows."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxgen.config import GPT2Config
from mlxgen.decoder import GPT2
from mlxgen.panels import PanelEmbedding, PanelLinear, use_panels


@pytest.mark.parametrize("n_out", [64, 65, 130, 50])
@pytest.mark.parametrize("rows", [1, 4, 32, 33, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_equals_the_plain_layer(n_out: int, rows: int, bias: bool) -> None:
    mx.random.seed(n_out)
    linear = nn.Linear(24, n_out, bias=bias)
    x = mx.random.normal((2, rows, 24)) if rows == 4 else mx.random.normal((1, rows, 24))
    ours = PanelLinear(linear)(x)
    assert ours.shape == linear(x).shape
    np.testing.assert_allclose(np.array(ours), np.array(linear(x)), atol=1e-5)


def test_embedding_gives_rows_and_the_tied_head() -> None:
    mx.random.seed(0)
    embedding = nn.Embedding(131, 24)
    panels = PanelEmbedding(embedding)
    ids = mx.array([[0, 63, 64], [130, 5, 127]])
    assert mx.array_equal(panels(ids), embedding(ids))
    x = mx.random.normal((2, 3, 24))
    np.testing.assert_allclose(np.array(panels.as_linear(x)), np.array(embedding.as_linear(x)), atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_decoder_gives_the_same_logits(tied: bool) -> None:
    mx.random.seed(1)
    sizes = {"vocab_size": 97, "n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 3}
    decoder = GPT2(GPT2Config.from_dict({"model_type": "gpt2", **sizes, "tie_word_embeddings": tied}))
    ids = mx.random.randint(0, 97, (2, 20))
    plain, plain_short = decoder(ids), decoder(ids[:, :3])
    mx.eval(plain, plain_short)
    use_panels(decoder)
    assert not any(type(layer) is nn.Linear for _, layer in decoder.named_modules())
    np.testing.assert_allclose(np.array(decoder(ids)), np.array(plain), atol=1e-4)
    np.testing.assert_allclose(np.array(decoder(ids[:, :3])), np.array(plain_short), atol=1e-4)
