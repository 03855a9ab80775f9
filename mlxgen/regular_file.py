"""Opening untrusted files: a pipe or a device in a file's place is refused, as reading it could wait or go on for ever."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading bytes. Raises OSError, also for anything but a regular file."""
    stream = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")  # does not wait for a pipe's writer
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return stream
    stream.close()
    raise OSError(errno.EINVAL, "is not a regular file", str(path))
