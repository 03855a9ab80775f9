"""A lock on the output, so that two runs do not write one file."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mlxgen.cli.jsonl.process_group import ProcessGroup
from mlxgen.errors import MlxgenError


@contextmanager
def locked(path: Path, group: ProcessGroup) -> Iterator[None]:
    """Hold the lock of an output file; rank 0 does for the whole group. Raises MlxgenError if another run holds it."""
    if path.is_dir():
        raise MlxgenError(f"{path} is a folder; give a file for the output")
    lock = path.with_name(f"{path.name}.lock")
    descriptor, busy = None, b""
    if group.rank == 0 and path.parent.is_dir():
        try:
            descriptor = _acquire(lock)
        except BlockingIOError:
            busy = b"busy"
    try:
        if group.all_gather(busy)[0]:
            if group.rank == 0:
                raise MlxgenError(f"another run is writing {path}; wait for it, or give another file for the output")
            raise SystemExit(1)  # rank 0 says why
        yield
    finally:
        if descriptor is not None:
            with suppress(OSError):
                lock.unlink()
            os.close(descriptor)


def _acquire(lock: Path) -> int | None:
    """The descriptor of the locked file, or None if the file system has no locks. Raises BlockingIOError if taken."""
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(lock)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise
        except FileNotFoundError:
            pass  # its holder has just ended and removed it
        except OSError:
            os.close(descriptor)
            return None
        os.close(descriptor)
