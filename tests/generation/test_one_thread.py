"""A session is for one thread at a time, and says so; sessions of one model are independent."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mlxgen
from mlxgen.errors import OptionError

USES: dict[str, Callable[[mlxgen.Session, Path], object]] = {
    "extend": lambda session, _: session.extend("a"),
    "generate": lambda session, _: session.generate("a"),
    "stream": lambda session, _: session.stream("a"),
    "rewind": lambda session, _: session.rewind(1),
    "reset_to": lambda session, _: session.reset_to("a"),
    "mark": lambda session, _: session.mark(),
    "fork": lambda session, _: session.fork(),
    "save": lambda session, folder: session.save(folder / "session"),
    "prefill": lambda session, _: session.prefill(),
}


def test_a_session_in_use_by_another_thread_is_refused(model: mlxgen.Model, tmp_path: Path) -> None:
    session, inside, done = mlxgen.Session(model), threading.Event(), threading.Event()

    def wait(*_: int) -> None:
        inside.set()
        assert done.wait(60)

    with ThreadPoolExecutor(1) as other:
        answer = other.submit(session.generate, "the king", temperature=0, max_tokens=4, progress=wait)
        assert inside.wait(60)
        for use in USES.values():
            with pytest.raises(OptionError, match="in use by another thread"):
                use(session, tmp_path)
        done.set()
        expected = mlxgen.generate(model, "the king", temperature=0, max_tokens=4).tokens
        assert answer.result().tokens == expected
    session.extend("a")  # free again


def test_an_answer_in_use_by_another_thread_is_refused(model: mlxgen.Model) -> None:
    inside, done = threading.Event(), threading.Event()

    def wait(*_: int) -> None:
        inside.set()
        assert done.wait(60)

    answer = mlxgen.stream(model, "the king", max_tokens=4, progress=wait)
    with ThreadPoolExecutor(1) as other:
        step = other.submit(next, answer)
        assert inside.wait(60)
        with pytest.raises(OptionError, match="in use by another thread"):
            next(answer)
        done.set()
        assert step.result().index == 0
    assert next(answer).index == 1  # threads may take turns


def test_a_fork_and_another_session_are_independent(model: mlxgen.Model) -> None:
    session = mlxgen.Session(model)
    session.generate("the king", temperature=0, max_tokens=4)
    sessions = [session, session.fork(), mlxgen.Session(model), mlxgen.Session(model)]
    expected = [sessions[at].fork().generate("so", temperature=0, max_tokens=20).tokens for at in (0, 2)]
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda one: one.generate("so", temperature=0, max_tokens=20).tokens, sessions)
        assert list(answers) == [expected[0], expected[0], expected[1], expected[1]]


def test_many_threads_on_one_session_end_in_answers_or_refusals(model: mlxgen.Model) -> None:
    session = mlxgen.Session(model, overflow="slide")

    def use(_: int) -> bool:
        try:
            session.generate("so", max_tokens=3)
        except OptionError as error:
            assert "in use by another thread" in str(error)
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert any(pool.map(use, range(100)))
    assert session.generate("so", max_tokens=3).tokens
