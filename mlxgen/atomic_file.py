"""Replacing a file as a whole: it is written beside its place and renamed into it, so a crash leaves the old one.

A file that is being written is locked, and the system drops the lock with the process. So the next writer can tell what
a killed process left behind, and removes it.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing_file(path: str | Path) -> Iterator[Path]:
    """Yield the path of an empty file beside ``path``, with the same suffix; when the block ends, it replaces ``path``.

    If the block raises, ``path`` stays as it was and the new file is removed. Something that cannot be replaced, such
    as a device or a pipe, is yielded itself. Raises OSError.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        yield path
        return
    if path.is_symlink():
        path = path.resolve()  # the file is replaced, not the link to it
    remove_leftovers(path)
    part, descriptor = _locked_part(path)
    try:
        yield part
        if path.exists():
            part.chmod(path.stat().st_mode & 0o7777)
        with part.open("rb") as written:
            os.fsync(written.fileno())  # before the rename, or a power cut could leave an empty file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
        os.close(descriptor)


def remove_leftovers(path: Path) -> None:
    """Remove what killed processes left of files that were to replace ``path``."""
    name = re.compile(rf"\.{re.escape(path.stem)}\.[0-9a-f]{{8}}\.part{re.escape(path.suffix)}")
    for part in path.parent.glob(f".{glob.escape(path.stem)}.*.part{glob.escape(path.suffix)}"):
        if name.fullmatch(part.name) is None:
            continue
        with suppress(OSError):
            descriptor = os.open(part, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its writer lives
                part.unlink()
            finally:
                os.close(descriptor)


def _locked_part(path: Path) -> tuple[Path, int]:
    """A new file beside ``path`` and its locked descriptor."""
    while True:
        part = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.part{path.suffix}")
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        # Before the lock is ours, another process may take the file for a leftover.
        if _is_locked(descriptor) and part.exists():
            return part, descriptor
        os.close(descriptor)
        part.unlink(missing_ok=True)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # this disk has no locks, so nobody removes the file either
    return True
