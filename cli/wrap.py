"""Lines of text on a terminal, broken between words."""

from __future__ import annotations

import os
import re
import shutil

# A command in backquotes stays on one line, so that it can be copied.
WORD = re.compile(r"`[^`\n]*`\S*|\S+")
LONG_WORD = 24  # cells; longer words may be broken by the terminal


def terminal_width() -> int:
    """The columns of the terminal, or of $COLUMNS; 80 where neither is known."""
    return shutil.get_terminal_size((80, 24)).columns


def wrapped(text: str, width: int, indent: int = 0) -> str:
    """The text with line breaks between words, so that lines fit into the width; `indent` spaces begin later lines."""
    return "\n".join(_wrapped_line(line, width, indent) for line in text.split("\n"))


def _wrapped_line(line: str, width: int, indent: int) -> str:
    lines, last = [""], 0
    for found in WORD.finditer(line):
        space, word = line[last : found.start()], found[0]
        if lines[-1].strip() and cells(lines[-1] + space + word) > width:
            lines.append(" " * indent + word)
        else:
            lines[-1] += space + word
        last = found.end()
    return "\n".join(lines)


def cells(text: str) -> int:
    """The columns that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


class StreamWrapper:
    """Breaks text between words as it comes, piece by piece.

    A word is held back until it is complete where it might not fit into the line; elsewhere it is given out at once.
    """

    def __init__(self, width: int, column: int = 0) -> None:
        self._width, self._column = width, column
        self._space = self._word = ""  # not given out yet
        self._begun = False  # whether the word's beginning was given out

    def next(self, piece: str) -> str:
        """What can be printed now."""
        out = "".join(self._character(character) for character in piece)
        if self._word and self._column + cells(self._space) + LONG_WORD <= self._width:
            out += self._give_word()
            self._begun = True
        return out

    def rest(self) -> str:
        """What was held back, at the end."""
        return self._give_word() + self._take_space()

    def _character(self, character: str) -> str:
        if character == "\n":
            out = self._give_word() + self._take_space() + "\n"
            self._column = 0
            return out
        if character.isspace():
            out = self._give_word()
            self._space += character
            return out
        if cells(character) > 1:  # a Chinese character, say: a line may end before and after it
            out = self._give_word()
            self._word = character
            return out + self._give_word()
        self._word += character
        return ""

    def _give_word(self) -> str:
        if not self._word:
            self._begun = False
            return ""
        out = self._take_space()
        if not self._begun and self._column and self._column + cells(self._word) > self._width:
            out, self._column = out.rstrip() + "\n", 0
        out += self._word
        self._column += cells(self._word)
        self._word, self._begun = "", False
        return out

    def _take_space(self) -> str:
        space, self._space = self._space, ""
        self._column += len(space)
        return space


def is_plain_terminal() -> bool:
    """Whether the terminal knows no escape sequences."""
    return os.environ.get("TERM") in ("dumb", "unknown")
