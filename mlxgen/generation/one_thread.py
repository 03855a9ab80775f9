"""One thread at a time: what MLX's arrays of a context demand, which two threads must not build on at once."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from mlxgen.errors import OptionError


class Held(Protocol):
    """An object that one thread at a time may use."""

    @property
    def lock(self) -> threading.RLock: ...


H = TypeVar("H", bound=Held)
P = ParamSpec("P")
R = TypeVar("R")


def one_thread(method: Callable[Concatenate[H, P], R]) -> Callable[Concatenate[H, P], R]:
    """Run a method while its object is held. Raises OptionError where another thread is inside such a method."""

    @functools.wraps(method)
    def held(self: H, /, *given: P.args, **named: P.kwargs) -> R:
        if not self.lock.acquire(blocking=False):
            raise OptionError("the session is in use by another thread; give each thread its own")
        try:
            return method(self, *given, **named)
        finally:
            self.lock.release()

    return held
