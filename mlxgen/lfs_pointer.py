"""Git LFS pointers: the few lines that `git clone` leaves in place of a large file until Git LFS fetches it."""

from __future__ import annotations

import shlex
from pathlib import Path

from mlxgen.errors import ModelError
from mlxgen.regular_file import open_regular

BEGINNING = b"version https://git-lfs.github.com/spec/"


def check_not_pointer(path: Path) -> None:
    """Raise ModelError if the file is only a pointer. A file that cannot be read is left to its reader's errors."""
    try:
        with open_regular(path) as file:
            pointer = file.read(len(BEGINNING)) == BEGINNING
    except (OSError, ValueError):
        return
    if pointer:
        fetch = shlex.join(["git", "-C", str(path.parent), "lfs", "pull"])
        raise ModelError(f"{path}: is a Git LFS pointer, not the file itself; fetch the files with `{fetch}`")
