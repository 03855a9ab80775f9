"""Whether a downloaded file is the one that the hub has."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from mlxgen.errors import ModelError


def check_download(path: Path, etag: str, file: str) -> None:
    """Compare a file with its ETag on the hub, and remove it if they differ. Raises ModelError.

    A large file's ETag is its SHA-256, a small one's git's SHA-1 of it. Any other says nothing about the content.
    """
    if re.fullmatch(r"[0-9a-f]{64}", etag):
        digest = hashlib.sha256()
    elif re.fullmatch(r"[0-9a-f]{40}", etag):
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    else:
        return
    with path.open("rb") as stream:
        while part := stream.read(1 << 20):
            digest.update(part)
    if digest.hexdigest() != etag:
        path.unlink()
        raise ModelError(f"{file} does not match its checksum on the hub, so it was removed; run the command again")
