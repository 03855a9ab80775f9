"""The terminal's echo of typed keys."""

from __future__ import annotations

import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_echo() -> Iterator[None]:
    """Keep what is typed, and ^C, out of the text that is being printed. The keys wait for the next input line."""
    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (AttributeError, OSError, ValueError, termios.error):  # not a terminal
        yield
        return
    flags = list(before)
    flags[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSADRAIN, flags)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
