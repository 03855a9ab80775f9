"""The input line of `mlxgen chat`: history, completion, several lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output

from mlxgen.cli.chat.transcript import PROMPT
from mlxgen.cli.output import say
from mlxgen.cli.wrap import is_plain_terminal

CONTINUED = "  "
TAKES_FILE = ("/save", "/load", "/export")


def input_line(commands: Iterable[str], settings: Iterable[str], history: Path | None) -> Callable[[str], str]:
    """A function that reads one input; its argument is the text that the line starts with.

    It raises EOFError on Ctrl-D and KeyboardInterrupt on Ctrl-C. history: the file that keeps inputs between runs.
    """
    if is_plain_terminal():
        return _plain_line
    session: PromptSession[str] = PromptSession(
        PROMPT,
        completer=ChatCompleter(commands, settings),
        complete_while_typing=False,
        history=_history(history),
        key_bindings=_keys(),
        multiline=True,  # Enter still sends: see _keys
        prompt_continuation=CONTINUED,
        output=create_output(stdout=sys.stdout if sys.stdout.isatty() else sys.stderr),
    )

    def ask(default: str = "") -> str:
        return session.prompt(default=default)

    return ask


def _plain_line(default: str = "") -> str:
    """One input on a terminal without escape sequences. It cannot start with a text, so that is shown before it."""
    if default:
        say(f"(so far: {default})")
    return input(PROMPT)


def default_history() -> Path:
    """The file that keeps inputs between runs, in $XDG_STATE_HOME or ~/.local/state."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "mlxgen" / "chat_history"


class ChatCompleter(Completer):
    """Completes commands, the names that /set knows, and files for /save, /load and /export."""

    def __init__(self, commands: Iterable[str], settings: Iterable[str]) -> None:
        self._commands, self._settings = sorted(commands), sorted(settings)
        self._files = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        command, space, rest = text.partition(" ")
        if not text.startswith("/") or "\n" in text:
            return
        if not space:
            yield from _matching(text, (f"{name} " for name in self._commands))
        elif command == "/set":
            yield from _matching(rest, (f"{name}=" for name in self._settings))
        elif command in TAKES_FILE:
            yield from self._files.get_completions(Document(rest), complete_event)


def _matching(start: str, words: Iterable[str]) -> Iterable[Completion]:
    return (Completion(word, start_position=-len(start)) for word in words if word.startswith(start))


def _history(path: Path | None) -> History:
    """A history in the file, which only its owner can read; or in memory if the file cannot be written."""
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError:
        return InMemoryHistory()
    return _KeptHistory(str(path))


class _KeptHistory(FileHistory):
    """A history that goes on in memory where the file can no longer be written."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def _keys() -> KeyBindings:
    """Enter sends. Alt-Enter, or a backslash and Enter, starts a new line."""
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.current_line_before_cursor.endswith("\\") and buffer.document.is_cursor_at_the_end:
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys
