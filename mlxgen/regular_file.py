"""Opening and reading untrusted files: a pipe or a device is refused, since reading it may never end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from mlxgen.errors import ModelError, reason_of


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading bytes. Raises OSError, also for anything but a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # does not wait for a pipe's other end
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))


def read_regular(path: Path, max_bytes: int, what: str) -> bytes:
    """The content of a file of at most ``max_bytes``. what: which file a larger one cannot be. Raises ModelError."""
    try:
        with open_regular(path) as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({reason_of(error)})") from None
    if len(data) > max_bytes:
        raise ModelError(f"{path}: larger than {max_bytes >> 20} MB, so it is not {what}")
    return data
