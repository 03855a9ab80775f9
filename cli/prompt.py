"""The text to work on: an argument, a file, or standard input."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import click

from mlxgen.errors import ModelError

TOKEN_ID = re.compile(r"-?[0-9]{1,18}")


class Utf8Text(click.types.StringParamType):
    """An option whose value is text for the model, UTF-8 in every locale."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return as_utf8(super().convert(value, param, ctx), param.opts[-1] if param else "the text")


def as_utf8(argument: str, name: str) -> str:
    """An argument's text, with the bytes that Python could not decode in this locale (LC_ALL=C) read as UTF-8."""
    if not any("\ud800" <= character <= "\udfff" for character in argument):
        return argument
    try:
        return os.fsencode(argument).decode()
    except UnicodeError:
        raise click.UsageError(f"{name} is not UTF-8 text") from None


def read_prompt(argument: str | None) -> str:
    """The prompt: the argument, or standard input if there is none or it is "-".

    An empty prompt must be given as an argument. Standard input that is empty or a terminal is a usage error, and so is
    an argument that is the path of a model.
    """
    if argument is not None and argument != "-":
        refuse_model(argument)
        return as_utf8(argument, "the prompt")
    if sys.stdin is None or (sys.stdin.isatty() and argument is None):
        raise click.UsageError('no prompt: give it as an argument ("" for an empty one), or on standard input')
    return text_of(read_content("-"), "-")


def refuse_model(argument: str) -> None:
    """Raise UsageError if a text is the path of a model or checkpoint: it was meant for another option or command.

    The name of any other file, or of none, is a text like others.
    """
    if what := model_at(argument):
        raise click.UsageError(f"{what} (if it is meant as text, give it on standard input)")


def model_at(argument: str) -> str | None:
    """What model or checkpoint is at a path, and what opens it; None if there is none."""
    path = os.path.expanduser(argument)
    if not argument.strip() or not os.path.exists(path):
        return None
    from mlxgen.weights.files.model_folder import check_no_model

    try:
        check_no_model(Path(path))
    except ModelError as error:
        return str(error)
    return None


def read_prompt_or_ids(argument: str | None, ids: str | None) -> str | list[int]:
    """The prompt as text, see `read_prompt`, or as the token ids of --ids."""
    if ids is None:
        return read_prompt(argument)
    if argument is not None:
        raise click.UsageError("--ids is the prompt as token ids, and there is a text too; give one of them")
    return read_ids(ids)


def read_ids(given: str) -> list[int]:
    """Token ids, separated by spaces or commas, perhaps in brackets; for "-", those on standard input."""
    text = _decoded(read_content("-"), "standard input") if given == "-" else given
    words = text.replace(",", " ").strip().removeprefix("[").removesuffix("]").split()
    for word in words:
        if not TOKEN_ID.fullmatch(word):
            raise click.UsageError(f'--ids takes token ids such as "464 3290", not {word[:40]!r}')
    if not words:
        raise click.UsageError('--ids has no token ids; give them as in --ids "464 3290"')
    return [int(word) for word in words]


def read_content(source: str) -> bytes:
    """The bytes of a file, or of standard input for "-"."""
    if source != "-":
        return Path(source).read_bytes()
    if sys.stdin is None:
        raise click.UsageError("no input: standard input is closed")
    return sys.stdin.buffer.read()


def text_of(content: bytes, source: str) -> str:
    """The text of what was read, without its last line break."""
    text = _decoded(content, "standard input" if source == "-" else source).removesuffix("\n").removesuffix("\r")
    if not text and source == "-":
        raise click.UsageError('standard input is empty; for an empty prompt give "" as the argument')
    return text


def _decoded(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        not_text = f"{name} is not UTF-8 text (byte {error.start}); convert it with iconv -t UTF-8"
        raise click.UsageError(model_at(name) or not_text) from None
