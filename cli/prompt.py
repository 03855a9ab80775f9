"""The text to work on: an argument, a file, or standard input."""

from __future__ import annotations

import sys
from pathlib import Path

import click


def read_prompt(argument: str | None) -> str:
    """The prompt: the argument, or standard input if there is none or it is "-".

    An empty prompt must be given as an argument. Standard input that is empty or a terminal is a usage error.
    """
    if argument is not None and argument != "-":
        if any("\ud800" <= character <= "\udfff" for character in argument):  # bytes that are not UTF-8
            raise click.UsageError("the prompt is not UTF-8 text")
        return argument
    if sys.stdin is None or (sys.stdin.isatty() and argument is None):
        raise click.UsageError('no prompt: give it as an argument ("" for an empty one), or on standard input')
    text = _decoded(sys.stdin.buffer.read(), "standard input").removesuffix("\n").removesuffix("\r")
    if not text:
        raise click.UsageError('standard input is empty; for an empty prompt give "" as the argument')
    return text


def read_text(source: str) -> str:
    """The text of a file, or of standard input for "-"."""
    return read_prompt("-") if source == "-" else _decoded(Path(source).read_bytes(), source)


def _decoded(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"{name} is not UTF-8 text (byte {error.start}); convert it with iconv -t UTF-8"
        ) from None
