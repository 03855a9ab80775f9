"""score_continuations(): what torch gives for each pair alone, whatever is processed together."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mlxgen
from mlxgen import continuations
from mlxgen.continuations import score_continuations
from mlxgen.errors import OptionError

from .support.models import tiny_gpt2

N_POSITIONS = 64
LONG = list(range(40))
PAIRS = [
    *((LONG, [text]) for text in (1, 2, 3, 250)),  # the same input for all of them
    *((LONG, [*[5, 6, 7][:n], 8]) for n in range(4)),  # a common context
    (LONG, list(range(100, 160))),  # too long: the beginning of the context is left out
    *(([9, *LONG, *LONG], [text, 12]) for text in (10, 11)),  # a common context that is too long
    ([7], [8]),
    ([7], list(range(64))),  # as long as the table
    (LONG[:20], [1, 2, 3]),
    (LONG[:20], [1, 2, 4]),
    ([3, 1, 4, 1, 5], [9]),
]


@pytest.fixture(scope="module")
def model(build_model: Callable[..., mlxgen.Model]) -> mlxgen.Model:
    return build_model()


@pytest.fixture(scope="module")
def oracle() -> Any:
    return tiny_gpt2().torch()


def alone(oracle: Any, context: list[int], text: list[int], size: int) -> tuple[float, bool]:
    """One pair, with torch: the newest tokens that fit, the last one predicted but not read."""
    tokens = (context + text)[-(size + 1) :]
    with torch.no_grad():
        logits = oracle(torch.tensor([tokens[:-1]])).logits[0, -len(text) :].double()
    wanted = torch.tensor(text)
    logprobs = torch.log_softmax(logits, dim=-1)[torch.arange(len(text)), wanted]
    return float(logprobs.sum()), bool((logits.argmax(dim=-1) == wanted).all())


@pytest.mark.parametrize("batch_size", [1, 3, None])
@pytest.mark.parametrize("max_length", [None, 61])
def test_likelihoods_are_those_of_torch_for_each_pair_alone(
    model: mlxgen.Model, oracle: Any, batch_size: int | None, max_length: int | None
) -> None:
    size = max_length or N_POSITIONS
    pairs = [(context, text) for context, text in PAIRS if len(text) <= size]
    for context in (LONG, [7]):  # what greedy decoding writes
        text: list[int] = []
        while len(text) < 4:
            with torch.no_grad():
                text.append(int(oracle(torch.tensor([context + text])).logits[0, -1].argmax()))
        pairs += [(context, text), (context, text[:2])]
    found = dict(score_continuations(model, pairs, batch_size=batch_size, max_length=max_length))
    assert sorted(found) == list(range(len(pairs)))
    for number, (context, text) in enumerate(pairs):
        logprob, greedy = alone(oracle, context, text, size)
        assert found[number].logprob == pytest.approx(logprob, abs=1e-4)
        assert found[number].greedy == greedy and len(found[number].logprobs) == len(text)
    assert {one.greedy for one in found.values()} == {True, False}


def test_a_common_context_is_processed_once(model: mlxgen.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []
    hidden = type(model.decoder).hidden

    def watch(self: Any, ids: Any, cache: Any = None) -> Any:
        shapes.append(ids.shape)
        return hidden(self, ids, cache)

    monkeypatch.setattr(type(model.decoder), "hidden", watch)
    choices = [(LONG, [text, text + 1]) for text in range(5)] + [(LONG[1:], [text, 3]) for text in range(3)]
    assert len(dict(score_continuations(model, choices))) == 8
    assert shapes == [(2, 39), (8, 2)]
    shapes.clear()
    assert len(dict(score_continuations(model, [(LONG, [text]) for text in range(9)]))) == 9
    assert shapes == [(1, 40)]


def test_no_pass_is_larger_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuations, "POSITIONS_AT_ONCE", 100)
    chosen = [LONG[:n] for n in (40, 30, 12, 9, 8, 7, 3, 2)]
    alone, _ = continuations._groups([(ids, [1]) for ids in chosen], N_POSITIONS, 4)
    lengths = [[group.length for group in passed] for passed in continuations._passes(alone, 4)]
    assert lengths == [[40, 30], [12, 9, 8, 7], [3, 2]]


def test_nothing_to_score_and_a_text_that_does_not_fit_are_refused(model: mlxgen.Model) -> None:
    for pair, message in (
        (([1], []), "the text has no tokens"),
        (([], [1]), "the context has no tokens"),
        (([1], [2] * 65), "a text of 65 tokens does not fit into 64 positions"),
    ):
        with pytest.raises(OptionError, match=message):
            score_continuations(model, [pair])
    with pytest.raises(OptionError, match="max_length must be at most 64"):
        score_continuations(model, [([1], [2])], max_length=65)
    with pytest.raises(OptionError, match="batch_size must be a whole number of at least 1"):
        score_continuations(model, [([1], [2])], batch_size=0)
