"""Where two runs of one prompt part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlxgen  # first, so that its BLAS is loaded before anything imports MLX  # isort: skip
import mlx.core as mx
import numpy as np
import pytest

from mlxgen.tracing.parting import Parting, parting
from mlxgen.tracing.record import Trace

from ..support.models import letter_tokenizer, tiny_gpt2

PROMPT = "Far away the king and the frog"


@pytest.fixture(scope="module")
def letters() -> mlxgen.Model:
    """Another model, whose tokens are single letters."""
    return tiny_gpt2(3, letter_tokenizer()).model()


def writing(model: mlxgen.Model, text: str, steps: int | None = None, *, then: int | None = None) -> Trace:
    """A trace that writes this text, then a token, and perhaps more of what the model likes."""
    script = model.tokenizer.encode(text) + ([] if then is None else [then])

    def force(tokens: mx.array, logits: mx.array) -> mx.array:
        at = len(tokens) - len(model.tokenizer.encode(PROMPT))
        if at >= len(script):
            return logits
        return mx.where(mx.array(np.arange(logits.shape[-1]) == script[at]), 100.0, logits)

    options: dict[str, Any] = {"logits_processors": [force], "temperature": 0, "greedy_path": False}
    return mlxgen.trace(model, PROMPT, steps or len(script), **options)


def test_runs_of_two_seeds_part_at_the_first_token_that_differs(model: mlxgen.Model) -> None:
    parted = []
    for seeds in ((1, 2), (3, 4), (5, 6), (7, 8)):
        runs = [mlxgen.trace(model, PROMPT, 12, seed=seed, top_k=3, greedy_path=False) for seed in seeds]
        ids = [mlxgen.generate(model, PROMPT, max_tokens=12, seed=seed, top_k=3).tokens for seed in seeds]
        at = next(at for at in range(12) if ids[0][at] != ids[1][at])
        assert parting(*runs) == Parting("token", at, at, model.tokenizer.decode(ids[0][:at]))
        parted.append(at)
    assert max(parted) > 0


def test_a_run_does_not_part_from_itself_or_from_its_beginning(model: mlxgen.Model) -> None:
    run = mlxgen.trace(model, PROMPT, 12, seed=1)
    assert parting(run, run) is None
    assert parting(run, mlxgen.trace(model, PROMPT, 5, seed=1)) is None


def test_tokens_of_one_text_are_not_the_same_tokens(model: mlxgen.Model) -> None:
    """One run writes " the" as one token, the other as four; of one vocabulary, they part there."""
    whole = model.tokenizer.encode(" the")
    assert len(whole) == 1
    one, other = writing(model, " far the"), writing(model, " far", then=model.tokenizer.encode(" ")[0])
    found = parting(one, other)
    assert found == Parting("token", 1, 1, " far")


def test_models_with_other_tokens_are_compared_by_their_texts(model: mlxgen.Model, letters: mlxgen.Model) -> None:
    first, second = writing(model, " and far king"), writing(letters, " and far frog")
    assert first.prompt_tokens != second.prompt_tokens
    assert [token.text for token in first.tokens] == [" and", " far", " king"]
    assert parting(first, second) == Parting("text", 2, 9, " and far ")
    assert parting(second, first) == Parting("text", 9, 2, " and far ")


def test_by_text_a_run_that_goes_less_far_does_not_part(model: mlxgen.Model, letters: mlxgen.Model) -> None:
    assert parting(writing(model, " and far king"), writing(letters, " and far king"[:7])) is None
    assert parting(writing(model, " and far"), writing(letters, " and far king")) is None


def test_by_text_a_run_that_ends_its_text_does_part(model: mlxgen.Model, letters: mlxgen.Model) -> None:
    end = min(letters.end_tokens)
    ended, longer = writing(letters, " and", then=end), writing(model, " and far")
    assert ended.finish_reason == "stop"
    assert parting(ended, longer) == Parting("text", 4, 1, " and")


@pytest.mark.parametrize("prompt", ["Far away", [5, 6]], ids=["text", "ids"])
def test_different_prompts_are_refused(model: mlxgen.Model, prompt: str | Sequence[int]) -> None:
    first = mlxgen.trace(model, prompt, 2, seed=1)
    others = [mlxgen.trace(model, PROMPT, 2, seed=1)]
    if not isinstance(prompt, str):  # the same ids, which stand for other texts
        others.append(
            mlxgen.trace(tiny_gpt2(0, letter_tokenizer(list(reversed("abcdefgh")))).model(), prompt, 2, seed=1)
        )
    for other in others:
        with pytest.raises(mlxgen.OptionError, match="different prompts"):
            parting(first, other)
