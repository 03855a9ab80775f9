"""rich's console for standard output."""

from __future__ import annotations

import sys
from typing import NoReturn

from rich.console import Console

from mlxgen.cli.wrap import terminal_width


class TerminalConsole(Console):
    """As wide as the terminal, with text as it is. A closed pipe is an error for the caller, and no exit status 1."""

    def __init__(self) -> None:
        super().__init__(file=sys.stdout, width=terminal_width(), highlight=False, markup=False, emoji=False)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError
