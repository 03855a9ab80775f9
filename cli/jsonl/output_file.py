"""The output: one JSON object per line, written as it is known, resumed after an interruption, ordered at the end."""

from __future__ import annotations

import glob
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxgen.atomic_file import replacing_file
from mlxgen.cli.jsonl.process_group import ProcessGroup
from mlxgen.cli.output import json_text
from mlxgen.errors import MlxgenError

Key = tuple[str | int, int, str]  # a line's id, the sample, and the hash of its request
START = b'{"id": '  # of every line that this module writes
FAILURE_KEYS = {"id", "line", "error"}  # of an object for a line that failed; its Key has the line's number for the id
FAILED = ""  # and this for the request


class OutputFile:
    """The output and, where several processes work, each one's part beside it (OUT.rank0, OUT.rank1, …).

    What an earlier run left in any of them counts where the request is still the same; what failed is tried again.
    result_keys: the keys of a result besides the common ones, one set for each kind. A file with anything else in it
    is left alone: MlxgenError.
    """

    def __init__(
        self, path: Path, group: ProcessGroup, result_keys: Sequence[frozenset[str]], *, overwrite: bool
    ) -> None:
        self.path, self._group, self._result_keys = path, group, result_keys
        self._part = path if group.size == 1 else path.with_name(f"{path.name}.rank{group.rank}")
        if overwrite:
            for file in self._files():
                file.unlink(missing_ok=True)
            group.barrier()  # nobody writes before all have deleted
        done: dict[Key, bytes] = {}
        for file in self._files():
            found = dict(self._read(file, failures=False))
            if file == self._part and file.exists() and b"".join(found.values()) != file.read_bytes():
                _replace(file, b"".join(found.values()))  # without failures and a line that was cut short
            done |= found
        self.done: dict[tuple[str | int, str], set[int]] = defaultdict(set)  # samples, by id and request
        for keys in group.all_gather(json.dumps(list(done)).encode()):  # all have read before anybody writes
            for own_id, sample, request in json.loads(keys):
                self.done[own_id, request].add(sample)
        self._stream = open(self._part, "ab")  # noqa: SIM115  # open as long as the run

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add a result or a failure, on the disk at once."""
        try:
            self._stream.write(json_line(entry))
            self._stream.flush()
        except OSError as error:  # a full disk does not say where it is
            error.filename = str(self._part)
            raise

    def finish(self, asked: Mapping[str | int, tuple[int, str]]) -> None:
        """Write the output in the order of the input. asked: by id, the number of each line and its request."""
        self._stream.close()
        local: dict[Key, bytes] = {}
        for file in self._files():
            local |= dict(self._read(file, failures=file == self._part))
        gathered = self._group.all_gather(b"".join(local.values()))
        if self._group.rank == 0:
            merged = {key: line for part in gathered for key, line in _parsed(part, self._result_keys, name="a part")}
            placed: list[tuple[int, int, bytes]] = []  # line number, sample, line
            for (own_id, sample, request), line in merged.items():
                if request == FAILED:
                    placed.append((json.loads(line)["line"], sample, line))
                elif own_id in asked and asked[own_id][1] == request:
                    placed.append((asked[own_id][0], sample, line))
            content = b"".join(line for *_, line in sorted(placed))
            if not self.path.exists() or self.path.read_bytes() != content:
                _replace(self.path, content)
        self._group.barrier()  # the output is complete
        for part in self._files()[1:]:
            part.unlink(missing_ok=True)
        self._group.barrier()

    def _files(self) -> list[Path]:
        parts = self.path.parent.glob(glob.escape(self.path.name) + ".rank*")
        return [self.path, *sorted(part for part in parts if part.suffix.removeprefix(".rank").isdigit())]

    def _read(self, file: Path, *, failures: bool) -> Iterator[tuple[Key, bytes]]:
        if file.exists():
            for key, line in _parsed(file.read_bytes(), self._result_keys, name=str(file)):
                if failures or key[2] != FAILED:
                    yield key, line


def json_line(entry: Mapping[str, Any]) -> bytes:
    """An object as one line of UTF-8."""
    try:
        return json_text(entry).encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, which UTF-8 cannot hold
        return json_text(entry, ascii_only=True).encode() + b"\n"


def _parsed(content: bytes, result_keys: Sequence[frozenset[str]], *, name: str) -> Iterator[tuple[Key, bytes]]:
    """Each result or failure with its key. A last line that was cut short is dropped."""
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            key = _key(json.loads(line), result_keys)
        except (ValueError, RecursionError):
            key = None
            if number == len(lines) and not line.endswith(b"\n") and line[: len(START)] == START[: len(line)]:
                return
        if key is None:
            raise MlxgenError(
                f"{name}, line {number} is not a result of this command, so the file is left as it is;"
                " give another file for the output, or replace this one with --overwrite"
            )
        yield key, line if line.endswith(b"\n") else line + b"\n"


def _key(entry: Any, result_keys: Sequence[frozenset[str]]) -> Key | None:
    """The key of a result or a failure; None for anything else."""
    if not isinstance(entry, dict):
        return None
    if entry.keys() == FAILURE_KEYS and type(entry["line"]) is int:
        return entry["line"], 0, FAILED
    own_id: Any = entry.get("id")
    request: Any = entry.get("request")
    sample = entry.get("sample", 0)
    common = type(own_id) in (str, int) and type(sample) is int and isinstance(request, str) and request != FAILED
    return (own_id, sample, request) if common and any(keys <= entry.keys() for keys in result_keys) else None


def _replace(path: Path, content: bytes) -> None:
    with replacing_file(path) as part:
        part.write_bytes(content)
