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
        self._too_long = False  # whether the word is one that the terminal breaks

    def next(self, piece: str) -> str:
        """What can be printed now."""
        out = "".join(self._character(character) for character in piece)
        surely_fits = self._column + cells(self._space) + LONG_WORD <= self._width
        if self._word and (surely_fits or cells(self._word) > LONG_WORD or self._too_long):
            self._too_long = self._too_long or not surely_fits
            out += self._give_word()
            self._begun = True
        return out

    def rest(self) -> str:
        """What was held back, at the end."""
        return self._give_word() + self._take_space()

    def _character(self, character: str) -> str:
        if not character.isspace() and cells(character) < 2:
            self._word += character
            return ""
        out = self._end_word()
        if character == "\n":
            out += self._take_space() + "\n"
            self._column = 0
        elif character.isspace():
            self._space += character
        else:  # a Chinese character, say: a line may end before and after it
            self._word = character
            out += self._end_word()
        return out

    def _end_word(self) -> str:
        out = self._give_word()
        self._begun = self._too_long = False
        return out

    def _give_word(self) -> str:
        if not self._word:
            return ""
        out = self._take_space()
        if not self._begun and self._column and self._column + cells(self._word) > self._width:
            out, self._column = out.rstrip() + "\n", 0
        out += self._word
        self._column += cells(self._word)
        if self._column > self._width:
            self._column = (self._column - 1) % self._width + 1
        self._word = ""
        return out

    def _take_space(self) -> str:
        space, self._space = self._space, ""
        self._column += len(space)
        return space


def is_plain_terminal() -> bool:
    """Whether the terminal knows no escape sequences."""
    return os.environ.get("TERM") in ("dumb", "unknown")
