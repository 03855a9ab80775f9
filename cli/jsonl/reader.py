"""A file of many requests: a line each, plain or JSON, every line with an id."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from mlxgen.errors import MlxgenError, OptionError

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
FORMATS = ("auto", "jsonl", "text")


@dataclass(frozen=True, slots=True)
class Line:
    """One line. id: its own, or its number in the file (from 1). entries: what it asks for. error: why it is unusable.

    done: the samples that an earlier run has answered already. request: a name for what is asked, options included.
    """

    number: int
    id: str | int | None
    entries: Mapping[str, Any]
    error: MlxgenError | None = None
    done: frozenset[int] = field(default=frozenset())
    request: str = ""


def read_lines(source: str, form: str, text_key: str) -> Iterator[Line]:
    """The lines of a file, or of standard input for "-". Empty ones are skipped, though they count in the numbers.

    form: "jsonl", "text" (every line is the text itself), or "auto", by the file's name or else its first line.
    text_key: which entry a line that is nothing but a text stands for.
    """
    raw = sys.stdin.buffer if source == "-" else _opened(source)
    seen: dict[str | int, int] = {}
    if form == "auto" and source != "-":
        suffix = Path(source).suffix.lower()
        form = "jsonl" if suffix in JSON_SUFFIXES else "text" if suffix == ".txt" else form
    for number, content in enumerate(raw, start=1):
        content = content.removesuffix(b"\n").removesuffix(b"\r")
        if number == 1:
            content = content.removeprefix(b"\xef\xbb\xbf")  # some editors mark UTF-8 with this
        if not content.strip():
            continue
        if form == "auto":
            form = "jsonl" if content.lstrip()[:1] in (b"{", b'"') else "text"
        yield _checked(number, content, form, text_key, seen)


def dumps(entry: Mapping[str, Any]) -> bytes:
    """An object as one line of UTF-8."""
    try:
        return json.dumps(entry, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half a character, which JSON can only spell out
        return json.dumps(entry).encode() + b"\n"


def digest(asked: Mapping[str, Any]) -> str:
    """A short name for what a line asks for: another one, and its answer is another too."""
    return hashlib.blake2b(json.dumps(asked, sort_keys=True).encode(), digest_size=8).hexdigest()


def _opened(source: str) -> Iterable[bytes]:
    with open(source, "rb") as file:
        yield from file


def _checked(number: int, content: bytes, form: str, text_key: str, seen: dict[str | int, int]) -> Line:
    own_id: str | int | None = number
    entries: Mapping[str, Any] = {}
    try:
        entries = _parsed(content, form, text_key)
        own_id = entries.get("id", number)
        if isinstance(own_id, bool) or not isinstance(own_id, str | int):
            own_id = None
            raise OptionError("id must be text or a whole number")
        if own_id in seen:
            taken, own_id = own_id, None
            raise OptionError(f"the id {json.dumps(taken)} is that of line {seen[taken]} already")
        seen[own_id] = number
    except OptionError as error:
        return Line(number, own_id, entries, error)
    return Line(number, own_id, entries)


def _parsed(content: bytes, form: str, text_key: str) -> Mapping[str, Any]:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise OptionError(f"the line is not UTF-8 (byte {error.start + 1}: {error.reason})") from None
    if form == "text":
        return {text_key: text}
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise OptionError(f"the line is not JSON: {reason}") from None
    if isinstance(value, str):
        return {text_key: value}
    if not isinstance(value, dict):
        raise OptionError("the line must be a JSON string or object")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
