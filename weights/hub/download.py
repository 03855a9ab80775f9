"""Downloads of weights that resume where they were interrupted, also in a later run.

huggingface_hub retries an interrupted download by itself, but when it gives up it discards what has arrived. Weights
are large, so they are downloaded into a file beside their place in its cache, and a later run continues that file.
"""

from __future__ import annotations

import fcntl
from pathlib import Path

from mlxgen.weights.hub.checksum import check_download


def download_file(repo: str, commit: str, file: str) -> None:
    """Download one file of a repository into huggingface_hub's cache, and check it.

    Raises ModelError for a damaged file, the client's errors, and OSError.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get, repo_folder_name
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url = hf_hub_url(repo, file, revision=commit)
    meta = get_hf_file_metadata(url, library_name="mlxgen")
    if not meta.etag or not meta.size:
        return  # two versions of the file could not be told apart, so the client downloads it alone
    blob = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model") / "blobs" / meta.etag
    if blob.exists():
        return
    blob.parent.mkdir(parents=True, exist_ok=True)
    part = blob.with_name(f"{meta.etag}.mlxgen-part")
    with part.open("ab") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return  # another process is downloading it, so the client downloads its own copy
        had = stream.tell()
        if had > meta.size:
            stream.truncate(had := 0)
        headers = build_hf_headers(library_name="mlxgen")
        http_get(url, stream, resume_size=had, headers=headers, expected_size=meta.size, displayed_filename=file)
        stream.flush()
        check_download(part, meta.etag, file)
        part.rename(blob)
