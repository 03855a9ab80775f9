"""Ctrl-C in the middle of an answer, as a notebook's stop button sends it: what was generated stays, and goes on."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxgen
from mlxgen.generation.answer import Answer
from mlxgen.generation.session import Session
from mlxgen.model import Model

from ..support import oracles

SOURCES = str(Path(mlxgen.__file__).parent)
PROMPT = [7, 99, 3, 250, 31, 7, 99, 3, 250, 31, 7, 99]
PLACES = 40  # of a few thousand lines that an answer executes


class InterruptAt:
    """A trace function that raises KeyboardInterrupt before the n-th line that runs in mlxgen; it counts them too."""

    def __init__(self, n: int | None) -> None:
        self.n, self.count = n, 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCES):
            return None
        if event == "line":
            self.count += 1
            if self.count == self.n:
                raise KeyboardInterrupt
        return self


def interrupted(model: Model, n: int | None, context: dict[str, Any], options: dict[str, Any]) -> tuple[Any, ...]:
    """A session whose answer was interrupted at the n-th line (None: never), the answer, and the lines that ran."""
    session = Session(model, **context)
    session.extend(PROMPT)
    answer, interrupt = session.stream(max_tokens=8, **options), InterruptAt(n)
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        answer.finish()
    except KeyboardInterrupt:
        assert n is not None
    finally:
        sys.settrace(before)
    return session, answer, interrupt.count


@pytest.mark.parametrize(
    ("context", "options"),
    [
        ({}, {"seed": 1}),
        ({}, {"temperature": 0, "lookahead": True}),
        ({"max_kv_size": 8, "keep": 2}, {"seed": 1}),
        ({"overflow": "slide", "keep": 2}, {"seed": 2}),
    ],
    ids=["plain", "lookahead", "rotating", "slide"],
)
def test_wherever_an_answer_is_interrupted_the_session_has_what_the_answer_has(
    build_model: Any, context: dict[str, Any], options: dict[str, Any]
) -> None:
    model = build_model(n_positions=16 if "overflow" in context else 64)
    weights = oracles.parameters(model.decoder)
    whole, answer, lines = interrupted(model, None, context, options)
    tokens = answer.generation.tokens
    assert whole.tokens == PROMPT + tokens and len(tokens) == 8
    lengths = set()
    for n in range(1, lines, lines // PLACES):
        session, answer, _ = interrupted(model, n, context, options)
        given = answer.generation.tokens
        assert session.tokens == PROMPT + given == (PROMPT + tokens)[: len(session.tokens)]
        assert answer.generation.text == "".join(answer.generation.pieces)
        lengths.add(len(given))
        session.end_answer()  # as whatever comes next does
        logits = np.array(session.prefill()[0])
        if not context:
            wanted = oracles.numpy_logits(weights, model.config, session.tokens)[-1]
        else:
            fresh = Session(model, **context)
            fresh.extend(session.tokens)
            wanted = np.array(fresh.prefill()[0])
        np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-4)
    assert lengths >= {0, 3, 5}


def test_an_interrupt_between_two_steps_keeps_them_and_the_answer_can_go_on(model: Model) -> None:
    whole = mlxgen.generate(model, PROMPT, max_tokens=9, seed=3)
    session = Session(model)
    answer: Answer = session.stream(PROMPT, max_tokens=9, seed=3)
    with pytest.raises(KeyboardInterrupt):
        for step in answer:
            if step.index == 3:
                raise KeyboardInterrupt
    assert answer.generation.tokens == whole.tokens[:4] and session.tokens == PROMPT + whole.tokens[:4]
    assert answer.finish().tokens == whole.tokens


def test_an_interrupt_while_the_device_is_waited_for_keeps_the_steps_before(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, sent = Session(model), mx.async_eval
    calls: list[int] = []

    def fourth_is_interrupted(*arrays: mx.array) -> None:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        sent(*arrays)

    answer = session.stream(PROMPT, max_tokens=9, seed=3)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(mx, "async_eval", fourth_is_interrupted)
        answer.finish()
    kept = answer.generation.tokens
    assert 0 < len(kept) < 9 and kept == mlxgen.generate(model, PROMPT, max_tokens=9, seed=3).tokens[: len(kept)]
    assert session.tokens == PROMPT + kept
