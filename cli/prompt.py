"""Where the prompt comes from: the argument, or standard input."""

from __future__ import annotations

import sys

import click


def read_prompt(argument: str | None) -> str:
    """The prompt. Without an argument, or for "-", all of standard input but its last line break.

    The empty prompt has to be given as an argument; standard input that is a terminal or empty is a usage error.
    """
    if argument is not None and argument != "-":
        if any("\ud800" <= character <= "\udfff" for character in argument):  # bytes that are not UTF-8
            raise click.UsageError("the prompt is not UTF-8 text")
        return argument
    if sys.stdin is None or (sys.stdin.isatty() and argument is None):
        raise click.UsageError('no prompt: give it as an argument ("" for an empty one), or on standard input')
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"standard input is not UTF-8 text (byte {error.start}); convert it with iconv -t UTF-8"
        ) from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise click.UsageError('standard input is empty; for an empty prompt give "" as the argument')
    return text
