"""What a converted folder was made from: a small file in it, for `mlxgen models`. It is not uploaded to the hub."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from mlxgen.errors import ModelError
from mlxgen.json_file import read_json
from mlxgen.weights.files.model_folder import ORIGIN


@dataclass(frozen=True, slots=True)
class Origin:
    """What a folder was converted from. kind: the source's format, in words. source: a hub id, a name or a path."""

    kind: str
    source: str
    revision: str | None = None  # on the hub


def write_origin(folder: Path, origin: Origin) -> None:
    """Record the origin in a folder. Raises OSError."""
    (folder / ORIGIN).write_text(json.dumps(asdict(origin), indent=4) + "\n", encoding="utf-8")


def read_origin(folder: Path) -> Origin | None:
    """The recorded origin of a folder; None where there is none, or none that can be read."""
    try:
        entries = read_json(folder / ORIGIN)
    except ModelError:
        return None
    kind, source, revision = (entries.get(name) for name in ("kind", "source", "revision"))
    if not isinstance(kind, str) or not isinstance(source, str):
        return None
    return Origin(kind, source, revision if isinstance(revision, str) else None)
