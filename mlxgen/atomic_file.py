"""Atomic file replacement: write a new file beside the old one, then rename it, so that a crash leaves the old one.

A file is locked while it is being written, and the system releases the lock when the process ends. So the next writer
can recognize and remove the files that a killed process left behind.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing_file(path: str | Path) -> Iterator[Path]:
    """Yield the path of an empty file beside ``path``, with the same suffix. After the block it replaces ``path``.

    If the block raises, ``path`` is unchanged and the new file is removed. A path that cannot be replaced, such as a
    device or a pipe, is yielded itself. Raises OSError.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        yield path
        return
    if path.is_symlink():
        path = path.resolve()  # replace the file, not the link
    remove_leftovers(path)
    part, descriptor = _locked_part(path)
    try:
        yield part
        if path.exists():
            part.chmod(path.stat().st_mode & 0o7777)
        with part.open("rb") as written:
            os.fsync(written.fileno())  # before the rename, or a power cut could leave an empty file
        part.replace(path)
    except OSError as error:
        if error.errno is not None and error.filename is None:  # a full disk does not say where it is
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):  # such as a file system that has become read-only: the block's own error is the cause
            part.unlink(missing_ok=True)
        os.close(descriptor)


def remove_leftovers(path: Path) -> None:
    """Remove unfinished replacements of ``path`` that killed processes left behind."""
    name = re.compile(rf"\.{re.escape(path.stem)}\.[0-9a-f]{{8}}\.part{re.escape(path.suffix)}")
    for part in path.parent.glob(f".{glob.escape(path.stem)}.*.part{glob.escape(path.suffix)}"):
        if name.fullmatch(part.name) is None:
            continue
        with suppress(OSError):
            descriptor = os.open(part, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its writer is running
                part.unlink()
            finally:
                os.close(descriptor)


def _locked_part(path: Path) -> tuple[Path, int]:
    """Create a file beside ``path``; returns its path and its locked descriptor."""
    while True:
        part = path.with_name(f".{path.stem}.{os.urandom(4).hex()}.part{path.suffix}")
        try:
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except OSError as error:
            error.filename = str(path)  # the caller knows nothing of the part
            raise
        # Until it is locked, another process may remove the file as a leftover.
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
        return True  # the file system has no locks, so no other process removes the file either
    return True
