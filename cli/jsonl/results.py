"""Results that outlive an interruption: a line each, appended and flushed, put in order at the end."""

from __future__ import annotations

import fcntl
import glob
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mlxgen.cli.jsonl.ranks import Ranks
from mlxgen.cli.jsonl.reader import dumps
from mlxgen.errors import MlxgenError

Key = tuple[str | int, int, str]  # a line's id, which sample, and what was asked
START = b'{"id": '  # of every line that this module writes
FAILURE = {"id", "line", "error"}  # the entries of a line that failed, whose key has
FAILED = ""  # for its request, and the line's number for its id
TAKEN = -1


@contextmanager
def alone(path: Path, ranks: Ranks) -> Iterator[None]:
    """Keep every other run away from an output file. The first rank does so for all of its launch."""
    if path.is_dir():
        raise MlxgenError(f"{path} is a folder; give a file for the output")
    lock = path.with_name(f"{path.name}.lock")
    descriptor = _locked(lock) if ranks.rank == 0 and path.parent.is_dir() else None
    try:
        taken = ranks.gather(b"taken" if descriptor == TAKEN else b"")[0]
        if taken and ranks.rank == 0:
            raise MlxgenError(f"another run is writing {path}; wait for it, or give another file for the output")
        if taken:
            raise SystemExit(1)  # the first rank says why
        yield
    finally:
        if descriptor is not None and descriptor != TAKEN:
            with suppress(OSError):
                lock.unlink()
            os.close(descriptor)


class Results:
    """The output file and, where several ranks work, each rank's part beside it (OUT.rank0, OUT.rank1, …).

    What an earlier run left in any of them is done where the same is asked again; what failed is tried again.
    kinds: which entries a result has, besides the common ones; any other file is refused.
    """

    def __init__(self, path: Path, ranks: Ranks, kinds: Sequence[frozenset[str]], *, overwrite: bool) -> None:
        self.path, self._ranks, self._kinds = path, ranks, kinds
        self._own = path if ranks.size == 1 else path.with_name(f"{path.name}.rank{ranks.rank}")
        if overwrite:
            for file in self._files():
                file.unlink(missing_ok=True)
            ranks.gather()  # nobody begins to write before all have deleted
        done: dict[Key, bytes] = {}
        for file in self._files():
            found = dict(self._entries(file, errors=False))
            if file == self._own and file.exists() and b"".join(found.values()) != file.read_bytes():
                _write(file, b"".join(found.values()))  # without a torn line, and without failures
            done |= found
        self.done: dict[tuple[str | int, str], set[int]] = defaultdict(set)  # samples, by id and request
        for keys in ranks.gather(json.dumps(list(done)).encode()):  # all have read before anybody writes
            for own_id, sample, request in json.loads(keys):
                self.done[own_id, request].add(sample)
        self._file = open(self._own, "ab")  # noqa: SIM115  # open as long as the run

    def append(self, entry: Mapping[str, Any]) -> None:
        self._file.write(dumps(entry))
        self._file.flush()

    def finish(self, wanted: Mapping[str | int, tuple[int, str]]) -> None:
        """Put what is wanted into the output file, in the order of the lines: their numbers and requests, by id."""
        self._file.close()
        local: dict[Key, bytes] = {}
        for file in self._files():
            local |= dict(self._entries(file, errors=file == self._own))
        gathered = self._ranks.gather(b"".join(local.values()))
        if self._ranks.rank == 0:
            merged = {key: line for part in gathered for key, line in _parsed(part, self._kinds, name="a part")}
            placed: list[tuple[int, int, bytes]] = []
            for (own_id, sample, request), line in merged.items():
                if request == FAILED:
                    placed.append((json.loads(line)["line"], sample, line))
                elif own_id in wanted and wanted[own_id][1] == request:
                    placed.append((wanted[own_id][0], sample, line))
            content = b"".join(line for *_, line in sorted(placed))
            if not self.path.exists() or self.path.read_bytes() != content:
                _write(self.path, content)
        self._ranks.gather()  # the output is there
        for part in self._files()[1:]:
            part.unlink(missing_ok=True)
        self._ranks.gather()

    def _files(self) -> list[Path]:
        parts = self.path.parent.glob(glob.escape(self.path.name) + ".rank*")
        return [self.path, *sorted(part for part in parts if part.suffix.removeprefix(".rank").isdigit())]

    def _entries(self, file: Path, *, errors: bool) -> Iterator[tuple[Key, bytes]]:
        if file.exists():
            for key, line in _parsed(file.read_bytes(), self._kinds, name=str(file)):
                if errors or key[2] != FAILED:
                    yield key, line


def _parsed(content: bytes, kinds: Sequence[frozenset[str]], *, name: str) -> Iterator[tuple[Key, bytes]]:
    """Each result or failure with its key. A last line that was cut short is dropped."""
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            key = _key(json.loads(line), kinds)
        except (ValueError, RecursionError):
            key = None
            if number == len(lines) and not line.endswith(b"\n") and line[: len(START)] == START[: len(line)]:
                return
        if key is None:
            raise MlxgenError(
                f"{name}, line {number} is not a result of this command, so nothing is added to that file;"
                " give another one, or --overwrite it"
            )
        yield key, line if line.endswith(b"\n") else line + b"\n"


def _key(entry: Any, kinds: Sequence[frozenset[str]]) -> Key | None:
    """The key of a result or a failure; None for anything else."""
    if not isinstance(entry, dict):
        return None
    if entry.keys() == FAILURE and type(entry["line"]) is int:
        return entry["line"], 0, FAILED
    own_id: Any = entry.get("id")
    request: Any = entry.get("request")
    sample = entry.get("sample", 0)
    common = type(own_id) in (str, int) and type(sample) is int and isinstance(request, str) and request != FAILED
    return (own_id, sample, request) if common and any(kind <= entry.keys() for kind in kinds) else None


def _locked(lock: Path) -> int | None:
    """A descriptor that holds the lock file, TAKEN, or None where the file system has no locks."""
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(lock)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return TAKEN
        except FileNotFoundError:
            pass  # its holder has just ended and removed it
        except OSError:
            os.close(descriptor)
            return None
        os.close(descriptor)


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole: a crash leaves the old one."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    os.replace(new, path)
