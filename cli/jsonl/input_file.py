"""The input: a file with one request per line, as JSON or plain text."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from mlxgen.errors import MlxgenError, OptionError
from mlxgen.generation.option_names import nearest

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
FORMATS = ("auto", "jsonl", "text")
STANDARD = "-"  # in place of a file: standard input or output


@dataclass(frozen=True, slots=True)
class InputLine:
    """One line of the input.

    number: its place in the file, from 1. id: its own, or else its number; None if its own is invalid. entries: what
    it asks for. error: why it cannot be used. request and done come from the run: a hash of what is asked, options
    included, and the samples of it that an earlier run has completed.
    """

    number: int
    id: str | int | None
    entries: Mapping[str, Any]
    error: MlxgenError | None = None
    request: str = ""
    done: frozenset[int] = frozenset()

    def checked_entries(self, known: Sequence[str]) -> Mapping[str, Any]:
        """The entries. Raises the line's error, or OptionError for an entry that is not one of the known ones."""
        if self.error:
            raise self.error
        if unknown := sorted(set(self.entries) - set(known)):
            near = nearest(unknown[0], known)
            hint = f"did you mean {near}?" if near else f"a line has {', '.join(known)}"
            raise OptionError(f"unknown key {unknown[0]!r}; {hint} (other data belongs in metadata)")
        return self.entries


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of requests.

    path: "-" for standard input. format: "jsonl", "text", or "auto", which goes by the file's suffix, or else by the
    first line. A JSON array in place of JSON lines is read as a whole, and each of its elements is a line. text_key:
    the entry that a plain text, or a JSON string, stands for. content: what was already read of standard input.
    """

    path: str
    format: str
    text_key: str
    content: bytes | None = None

    def lines(self) -> Iterator[InputLine]:
        """The lines in order. Empty ones are skipped, but count in the numbers."""
        form = self._format_by_suffix()
        line_of_id: dict[str | int, int] = {}
        raw_lines = iter(self._raw_lines())
        for number, content in enumerate(raw_lines, start=1):
            content = content.removesuffix(b"\n").removesuffix(b"\r")
            if number == 1:
                content = content.removeprefix(b"\xef\xbb\xbf")  # some editors mark UTF-8 with this
            if not content.strip():
                continue
            if form == "auto":
                form = "jsonl" if content.lstrip()[:1] in (b"{", b'"') else "text"
            if form == "jsonl" and not line_of_id and content.lstrip()[:1] == b"[":
                rest = b"".join(raw_lines)
                for place, element in enumerate(self._elements(content + b"\n" + rest), start=1):
                    yield self._read(place, json.dumps(element).encode(), form, line_of_id)
                return
            yield self._read(number, content, form, line_of_id)

    def _format_by_suffix(self) -> str:
        suffix = Path(self.path).suffix.lower()
        if self.format != "auto" or self.path == STANDARD:
            return self.format
        return "jsonl" if suffix in JSON_SUFFIXES else "text" if suffix == ".txt" else "auto"

    def _elements(self, content: bytes) -> list[Any]:
        """The elements of a JSON array. Raises OptionError."""
        try:
            value = json.loads(content, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise OptionError(
                f"{self.path} begins like a JSON array but is not one ({reason}); give one JSON value on each line"
            ) from None
        return list(value)

    def _raw_lines(self) -> Iterable[bytes]:
        if self.content is not None:
            yield from self.content.splitlines(keepends=True)
            return
        if self.path == STANDARD:
            yield from sys.stdin.buffer
            return
        with open(self.path, "rb") as file:
            yield from file

    def _read(self, number: int, content: bytes, form: str, line_of_id: dict[str | int, int]) -> InputLine:
        own_id: str | int | None = number
        entries: Mapping[str, Any] = {}
        try:
            text = _decoded(content)
            entries = {self.text_key: text} if form == "text" else self._parsed(text)
            own_id = entries.get("id", number)
            if isinstance(own_id, bool) or not isinstance(own_id, str | int):
                own_id = None
                raise OptionError("id must be text or a whole number")
            if own_id in line_of_id:
                used, own_id = own_id, None
                raise OptionError(f"id {json.dumps(used)} is already used by line {line_of_id[used]}")
            line_of_id[own_id] = number
        except OptionError as error:
            return InputLine(number, own_id, entries, error)
        return InputLine(number, own_id, entries)

    def _parsed(self, text: str) -> Mapping[str, Any]:
        try:
            value = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise OptionError(f"the line is not JSON: {reason}") from None
        if isinstance(value, str):
            return {self.text_key: value}
        if not isinstance(value, dict):
            raise OptionError("the line must be a JSON string or object")
        return value


def _decoded(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise OptionError(f"the line is not UTF-8 (byte {error.start + 1}: {error.reason})") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
