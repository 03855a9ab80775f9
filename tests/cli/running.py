"""Running the program: in this process, in one of its own, and on a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from typing import Any

from click.testing import CliRunner, Result

from mlxgen.cli.main import main


def run(*args: str, stdin: str | bytes | None = None, env: dict[str, str] | None = None) -> Result:
    """`mlxgen ARGS` in this process."""
    return CliRunner().invoke(main, args, input=stdin, env=env)


def command(*args: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """`mlxgen ARGS` in a real process; standard input is empty unless given."""
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(
        [sys.executable, "-m", "mlxgen", *args], capture_output=True, timeout=120, check=False, **options
    )


def on_terminal(*args: str, columns: int = 80) -> tuple[int, str]:
    """`python ARGS` with standard output and error on a terminal of that width: its status and what it wrote."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        [sys.executable, *args],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=environment | {"TERM": "xterm"},
    ) as process:
        os.close(theirs)
        output = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # Linux says so when the other end is closed
                break
            if not piece:
                break
            output += piece
        os.close(ours)
        code = process.wait(timeout=60)
    return code, output.decode().replace("\r\n", "\n")


def one_line(error: str) -> bool:
    return error.startswith("Error: ") and error.count("\n") == 1


class Screen:
    """What a terminal shows after it was sent some output: its lines, and whether the cursor is visible."""

    def __init__(self, output: str, columns: int = 80) -> None:
        self.rows, self.cursor_visible = [""], True
        self._columns, self._row, self._column = columns, 0, 0
        for escape, argument, final, character in re.findall(r"(\x1b\[(\??\d*(?:;\d+)*)([a-zA-Z]))|([\s\S])", output):
            if escape:
                self._obey(argument, final)
            elif character == "\n":
                self._line_feed()
            elif character == "\r":
                self._column = 0
            else:
                self._put(character)

    @property
    def lines(self) -> list[str]:
        """The lines with anything on them."""
        return [row.rstrip() for row in self.rows if row.strip()]

    def _obey(self, argument: str, final: str) -> None:
        if final == "A":
            self._row = max(0, self._row - int(argument or 1))
        elif final == "K":
            row = self.rows[self._row]
            self.rows[self._row] = "" if argument == "2" else row[: self._column]
        elif argument == "?25":
            self.cursor_visible = final == "h"
        elif final != "m":
            raise AssertionError(f"the screen does not know {argument}{final}")

    def _put(self, character: str) -> None:
        if self._column == self._columns:
            self._line_feed()
        row = self.rows[self._row].ljust(self._column)
        self.rows[self._row] = row[: self._column] + character + row[self._column + 1 :]
        self._column += 1

    def _line_feed(self) -> None:
        self._row, self._column = self._row + 1, 0
        if self._row == len(self.rows):
            self.rows.append("")
