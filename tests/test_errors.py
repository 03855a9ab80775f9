"""What errors quote from elsewhere fits into one line."""

from __future__ import annotations

import errno
import os

from mlxgen.errors import printable, reason_of


def test_the_reason_is_the_first_line() -> None:
    assert reason_of(ValueError("\n first \nsecond")) == "first"
    assert reason_of(ValueError()) == "ValueError"
    assert len(reason_of(ValueError("x" * 1000))) == 200


def test_of_an_os_error_the_reason_is_the_systems() -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/some/file")
    assert reason_of(error) == "No space left on device"
    assert reason_of(OSError("it is\nbroken")) == "it is"


def test_names_of_strangers_stay_on_one_line() -> None:
    assert printable("wte.weight") == "wte.weight"
    assert printable("a\n\x1b[31mb") == "a\\n\\x1b[31mb"
    assert printable("x" * 100, 20) == "x" * 20
