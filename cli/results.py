"""Results that outlive an interruption: a line each, appended and flushed, put in order at the end."""

from __future__ import annotations

import glob
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlxgen.cli.lines import dumps
from mlxgen.cli.ranks import Ranks
from mlxgen.errors import MlxgenError

Key = tuple[str | int, int]  # a line's id, and which sample


class Results:
    """The output file and, where several ranks work, each rank's part beside it (OUT.rank0, OUT.rank1, …).

    Whatever an earlier run left in any of them is done; lines that failed then are tried again.
    """

    def __init__(self, path: Path, ranks: Ranks, *, overwrite: bool) -> None:
        if path.is_dir():
            raise MlxgenError(f"{path} is a folder; give a file for the output")
        self.path, self._ranks = path, ranks
        self._own = path if ranks.size == 1 else path.with_name(f"{path.name}.rank{ranks.rank}")
        if overwrite:
            for file in self._files():
                file.unlink(missing_ok=True)
            ranks.gather()  # nobody begins to write before all have deleted
        done: dict[Key, bytes] = {}
        for file in self._files():
            found = dict(_entries(file, errors=False))
            if file == self._own and file.exists() and b"".join(found.values()) != file.read_bytes():
                _write(file, b"".join(found.values()))  # without a torn line, and without failures
            done |= found
        self.done: dict[str | int, set[int]] = defaultdict(set)
        for keys in ranks.gather(json.dumps(list(done)).encode()):  # all have read before anybody writes
            for own_id, sample in json.loads(keys):
                self.done[own_id].add(sample)
        self._file = open(self._own, "ab")  # noqa: SIM115  # open as long as the run

    def append(self, entry: Mapping[str, Any]) -> None:
        self._file.write(dumps(entry))
        self._file.flush()

    def finish(self, order: Mapping[str | int, int]) -> None:
        """Put everything into the output file, in the order of the lines: order is their numbers by id."""
        self._file.close()
        local: dict[Key, bytes] = {}
        for file in self._files():
            local |= dict(_entries(file, errors=file == self._own))
        gathered = self._ranks.gather(b"".join(local.values()))
        if self._ranks.rank == 0:
            merged = {key: line for part in gathered for key, line in _parsed(part, errors=True, name="a part")}

            def place(item: tuple[Key, bytes]) -> tuple[int, int]:
                (own_id, sample), line = item
                number = order.get(own_id) or json.loads(line).get("line") or len(order) + 1
                return number, sample

            content = b"".join(line for _, line in sorted(merged.items(), key=place))
            if not self.path.exists() or self.path.read_bytes() != content:
                _write(self.path, content)
        self._ranks.gather()  # the output is there
        for part in self._files()[1:]:
            part.unlink(missing_ok=True)
        self._ranks.gather()

    def _files(self) -> list[Path]:
        parts = self.path.parent.glob(glob.escape(self.path.name) + ".rank*")
        return [self.path, *sorted(part for part in parts if part.suffix.removeprefix(".rank").isdigit())]


def _entries(file: Path, *, errors: bool) -> Iterator[tuple[Key, bytes]]:
    if file.exists():
        yield from _parsed(file.read_bytes(), errors=errors, name=str(file))


def _parsed(content: bytes, *, errors: bool, name: str) -> Iterator[tuple[Key, bytes]]:
    """Each result with its key. A last line that was cut short is dropped; so are failures, unless they are wanted."""
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            own_id, failed = entry["id"], "error" in entry
        except (ValueError, TypeError, KeyError):
            if number == len(lines) and not line.endswith(b"\n"):
                return
            raise MlxgenError(
                f"{name}, line {number} is not a result of this command, so nothing is added to that file;"
                " give another one, or --overwrite it"
            ) from None
        if failed and not errors:
            continue
        key = (f"\0line {entry['line']}", 0) if failed else (own_id, entry.get("sample", 0))
        yield key, line if line.endswith(b"\n") else line + b"\n"


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole: a crash leaves the old one."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    os.replace(new, path)
