"""Weights from the hub that go on where they broke off, also in the next run.

huggingface_hub tries a broken download again by itself, but when it gives up it throws away what it has. Weights are
large, so what has come is kept here, in a file beside their place in huggingface_hub's cache.
"""

from __future__ import annotations

import fcntl
import hashlib
from pathlib import Path


def fetch_weights(repo: str, commit: str, file: str) -> None:
    """Bring one file of a repository into huggingface_hub's cache. Raises the client's errors, and OSError."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get, repo_folder_name
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url = hf_hub_url(repo, file, revision=commit)
    meta = get_hf_file_metadata(url, library_name="mlxgen")
    if not meta.etag or not meta.size:
        return  # nothing to tell by whether two downloads are of the same file: the client does it alone
    blob = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model") / "blobs" / meta.etag
    if blob.exists():
        return
    blob.parent.mkdir(parents=True, exist_ok=True)
    part = blob.with_name(f"{meta.etag}.mlxgen-part")
    with part.open("ab") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return  # another process is at it; the client then downloads a copy of its own
        had = stream.tell()
        if had > meta.size:
            stream.truncate(had := 0)
        headers = build_hf_headers(library_name="mlxgen")
        http_get(url, stream, resume_size=had, headers=headers, expected_size=meta.size, displayed_filename=file)
        stream.flush()
        if had and len(meta.etag) == 64 and _sha256(part) != meta.etag:
            part.unlink()
            raise OSError(f"{file} does not match its checksum")
        part.rename(blob)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
