"""What is promised in 16 bits: another way to the same text may change a token only where two logits are that close.

In float32 the tokens are the same; see the tests of lookahead, drafts and batches.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import mlxgen

from ..support import oracles

# How far logits may be from exact ones. The models' logits are mostly 10 times further apart than that in float16.
TOLERANCE = {mx.float16: 0.05, mx.bfloat16: 0.4}
PROMPT = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]


@pytest.fixture(params=TOLERANCE, ids=str)
def dtype(request):
    return request.param


@pytest.fixture
def halves(build_model, dtype):
    model = build_model()
    model.decoder.set_dtype(dtype)
    return model


def shortfalls(model, prompt, tokens):
    """How far each token's logit is below the best one's: exact logits, after the same tokens."""
    context = [*prompt, *tokens]
    rows = oracles.numpy_logits(oracles.parameters(model.decoder), model.config, context[:-1])[len(prompt) - 1 :]
    return rows.max(axis=-1) - rows[np.arange(len(tokens)), tokens]


@pytest.mark.parametrize("way", ["one token a pass", "chunks", "lookahead", "draft", "batch"])
def test_greedy_tokens_are_the_best_to_within_the_formats_steps(halves, dtype, build_model, way):
    options = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}
    prompts = [PROMPT]
    if way == "batch":
        prompts = [PROMPT, [7, 8], [5, 5, 5]]
        answers = list(mlxgen.batch(halves, prompts, ordered=True, **options))
    elif way == "draft":
        answers = [mlxgen.generate(halves, PROMPT, draft=build_model(), **options)]  # the same weights in float32
    else:
        ways = {"chunks": {"prefill_chunk": 3}, "lookahead": {"lookahead": True}}
        answers = [mlxgen.generate(halves, PROMPT, **options, **ways.get(way, {}))]
    for prompt, answer in zip(prompts, answers, strict=True):
        assert shortfalls(halves, prompt, answer.tokens).max() < TOLERANCE[dtype]
    if way in ("lookahead", "draft"):
        assert answers[0].accepted > 0


def test_a_wrong_token_is_not_the_best_to_within_the_formats_steps(halves, dtype):
    """The test above can fail."""
    tokens = mlxgen.generate(halves, PROMPT, max_tokens=20, temperature=0, ignore_eos=True).tokens
    assert np.median(shortfalls(halves, PROMPT, [(token + 1) % 250 for token in tokens])) > TOLERANCE[dtype]
