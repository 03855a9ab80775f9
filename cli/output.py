"""Printing: results to standard output, everything else to standard error.

What a model generates and what stands in a model's files is untrusted. This is the one place where it goes to a
terminal, and where control characters, which could change the terminal's title or what it shows, are escaped.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from mlxgen.cli.wrap import is_plain_terminal, terminal_width, wrapped
from mlxgen.errors import MlxgenError, printable

if TYPE_CHECKING:
    from mlxgen.generation.results import Generation


# Control characters except line break and tab, and the marks that change the direction of text. Everything else, such
# as the joiners inside emoji, belongs to texts.
CONTROLS = {
    code: chr(code).encode("unicode_escape").decode()
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\n\t"
}
# Of these, the ones that the json module leaves as they are.
JSON_CONTROLS = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
VISIBLE = {" ": "·", "\n": "↵", "\t": "→"}


def escaped(text: str) -> str:
    """The text as a terminal may get it: with control characters escaped, except line breaks and tabs."""
    return text.replace("\r\n", "\n").translate(CONTROLS)


def visible(text: str) -> str:
    """A token's text with visible spaces and line breaks, and other invisible characters escaped."""
    return "".join(VISIBLE.get(character, printable(character)) for character in text)


def write(text: str, colour: str | None = None) -> None:
    """Print a piece of the result at once: to a terminal escaped, and in that colour; elsewhere exactly as it is."""
    if sys.stdout is None:
        raise MlxgenError("standard output is closed; redirect it to a file or /dev/null")
    if stdout_is_terminal():
        text = escaped(text)
        if colour and not is_plain_terminal():
            text = click.style(text, fg=colour)
    sys.stdout.write(text)
    sys.stdout.flush()


def write_json(entries: Mapping[str, Any]) -> None:
    """Print an object as JSON on one line."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    plain = encoding.lower().replace("-", "") == "utf8"
    write(json_text(entries, ascii_only=not plain) + "\n")


def json_text(value: Any, *, ascii_only: bool = False) -> str:
    """A value as JSON on one line. Infinite numbers, which JSON does not have, become null.

    All control characters are escaped, also those that JSON allows (U+007F to U+009F).
    """
    return json.dumps(_finite(value), ensure_ascii=ascii_only, allow_nan=False).translate(JSON_CONTROLS)


def say(text: str, *, dim: bool = False, indent: int = 0) -> None:
    """Print a line to standard error, escaped. A terminal gets it broken between words, later lines indented."""
    text = for_stderr(text, indent)
    click.echo(click.style(text, dim=True) if dim and not is_plain_terminal() else text, err=True)


def for_stderr(text: str, indent: int = 0) -> str:
    """The text as it goes to standard error: escaped, and on a terminal broken between words."""
    text = escaped(text)
    return wrapped(text, terminal_width(), indent) if stderr_is_terminal() else text


def in_words(error: Exception) -> str:
    """An error on one line: mlxgen's errors in their own words, any other with a hint at MLXGEN_DEBUG."""
    if isinstance(error, MlxgenError):
        return " ".join(str(error).split()).replace("None (off)", "off")  # None is Python's word
    if isinstance(error, OSError) and error.strerror:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{' '.join(what.split())} (MLXGEN_DEBUG=1 shows where)"


def print_traceback() -> None:
    """Print where the present exception was raised, with MLXGEN_DEBUG=1."""
    if os.environ.get("MLXGEN_DEBUG", "") not in ("", "0"):
        import traceback

        click.echo(escaped(traceback.format_exc().rstrip("\n")), err=True)


def stdout_is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def stderr_is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def chatty(stats: bool | None, quiet: bool) -> bool:
    """Whether statistics and hints are wanted: on a terminal, or when asked for."""
    return not quiet and (stderr_is_terminal() if stats is None else stats)


def say_statistics(record: Generation) -> None:
    prompt, generated = len(record.prompt_tokens), len(record.tokens)
    say(f"Prompt: {count(prompt, 'token')}, {record.prompt_tps:.1f} tokens/s")
    say(f"Generation: {count(generated, 'token')}, {record.generation_tps:.1f} tokens/s ({record.finish_reason})")
    if record.guesses:
        say(f"Guesses: {guesses_in_words(record)}")
    say(f"Peak memory: {size(record.peak_memory)}. Seed: {record.seed}")


def guesses_in_words(record: Generation) -> str:
    """For example "120 of 150 right, 3.4 tokens per pass"."""
    return f"{record.accepted} of {record.guesses} right, {record.tokens_per_pass:.1f} tokens per pass"


def count(number: int, noun: str) -> str:
    """For example "1 turn" or "2,000 turns"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(n_bytes: float) -> str:
    """A number of bytes with its unit, such as "4.7 MB"."""
    for unit in ("bytes", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "bytes" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.2f} GB"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value
