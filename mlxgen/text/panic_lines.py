"""Keeping the lines that a panic in Rust writes to standard error out of what a user sees."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from mlxgen.reading import PANIC

STANDARD_ERROR = 2


@contextmanager
def without_panic_lines() -> Iterator[None]:
    """Hold standard error back while the body runs; drop it if the body panics, else write it.

    A panic's report goes to the file descriptor before Python sees the exception. Nothing else is lost: what the body,
    or another thread meanwhile, writes comes out at the end.
    """
    try:
        real = os.dup(STANDARD_ERROR)
        held = tempfile.TemporaryFile(dir=os.environ.get("TMPDIR") or "/tmp")  # noqa: SIM115
    except OSError:  # closed, or there is no room: then the lines are shown
        yield
        return
    panicked = False
    with held:
        os.dup2(held.fileno(), STANDARD_ERROR)
        try:
            yield
        except BaseException as error:
            panicked = type(error).__name__ == PANIC
            raise
        finally:
            os.dup2(real, STANDARD_ERROR)
            os.close(real)
            if not panicked:
                _copy(held.fileno())


def _copy(held: int) -> None:
    os.lseek(held, 0, os.SEEK_SET)
    while data := os.read(held, 1 << 16):
        os.write(STANDARD_ERROR, data)
