"""Downloads into huggingface_hub's cache that resume where they were interrupted, also in a later run.

huggingface_hub discards what has arrived when it gives up, trusts the paths that the hub's answers name, and waits as
long as a byte comes now and then. So files are downloaded here, into the places where it looks for them.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from mlxgen.atomic_file import replacing_file
from mlxgen.weights.hub.answers import (
    LEAST_BYTES,
    BadAnswer,
    Stalled,
    checked_hex,
    in_time,
    is_transient,
    opened,
    pieces,
)
from mlxgen.weights.hub.checksum import check_download

TRIES = 5  # one after another that bring nothing
PAUSE = 1.0  # seconds before the next
MOST_BYTES = 64 << 20  # of a file whose size the hub does not say
BAR_FROM = 1 << 20  # bytes of a file that has a progress bar


def cache_of(repo: str) -> Path:
    """The folder of a repository in huggingface_hub's cache."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model")


def download_file(repo: str, commit: str, file: str) -> Path:
    """Download one file at the top of a repository, and check it; returns its path in the cache's snapshot.

    Raises ModelError for a damaged file, BadAnswer, Stalled, the client's errors, and OSError.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    cache = cache_of(repo)
    path = cache / "snapshots" / checked_hex("commit", commit) / file
    if path.exists():
        return path
    url = hf_hub_url(repo, file, revision=commit)
    meta = in_time(lambda: get_hf_file_metadata(url, library_name="mlxgen"))
    blob = cache / "blobs" / checked_hex("ETag", meta.etag)
    if meta.size is not None and meta.size < 0:
        raise BadAnswer(f"the size of {file} is {meta.size}")
    if not blob.exists():
        _download_blob(url, blob, meta.size, file)
    _link(path, blob)
    return path


def remember(repo: str, revision: str | None, commit: str) -> None:
    """Write down which commit a branch or tag is, so that it is found without a network."""
    refs = cache_of(repo) / "refs"
    path = refs / (revision or "main")
    if revision == commit or not path.resolve().is_relative_to(refs.resolve()):
        return
    with suppress(OSError):  # such as a cache that cannot be written: everything is there
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing_file(path) as part:
            part.write_text(commit)


def _download_blob(url: str, blob: Path, size: int | None, file: str) -> None:
    blob.parent.mkdir(parents=True, exist_ok=True)
    part = blob.with_name(f"{blob.name}.mlxgen-part")
    with _locked(part) as stream:
        if blob.exists():  # another process has downloaded it meanwhile
            return
        with _progress(file, size, stream.seek(0, os.SEEK_END)) as progress:
            _fetch(url, stream, size, file, progress)
        check_download(part, blob.name, file)
        part.rename(blob)


def _fetch(url: str, stream: BinaryIO, size: int | None, file: str, progress: Callable[[int], object]) -> None:
    """Append the rest of a file, in several tries if the connection breaks. What has come is kept for the next run."""
    failures = 0
    while True:
        had = stream.tell()
        try:
            _fetch_rest(url, stream, size, file, progress)
            return
        except BadAnswer:
            stream.truncate(0)
            raise
        except Exception as error:
            failures = 0 if stream.tell() >= had + LEAST_BYTES else failures + 1
            if not is_transient(error) or failures == TRIES:
                raise
            time.sleep(PAUSE)
        finally:
            stream.flush()


def _fetch_rest(url: str, stream: BinaryIO, size: int | None, file: str, progress: Callable[[int], object]) -> None:
    had = stream.tell()
    if size is not None and had > size:
        stream.truncate(had := stream.seek(0))
    if had == size:
        return
    with opened(url, {"Range": f"bytes={had}-"} if had else None) as response:
        begins = response.headers.get("Content-Range", "").startswith(f"bytes {had}-")
        plain = response.headers.get("Content-Encoding", "identity") == "identity"
        if had and not (response.status_code == 206 and begins and plain):
            progress(-had)
            stream.truncate(stream.seek(0))
            if response.status_code == 206:
                raise Stalled(f"another part of {file} came than was asked for")
        for piece in pieces(response):
            if stream.tell() + len(piece) > (MOST_BYTES if size is None else size):
                raise BadAnswer(f"{file} is larger than it says")
            stream.write(piece)
            progress(len(piece))
    if size is not None and stream.tell() < size:
        raise Stalled(f"only {stream.tell():,} of {size:,} bytes of {file} came")


@contextmanager
def _locked(part: Path) -> Iterator[BinaryIO]:
    """The file, opened for appending. While another process writes it, this one waits."""
    while True:
        with part.open("ab") as stream:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(stream, fcntl.LOCK_EX)
            if _is_at(part, stream):
                try:
                    yield stream
                finally:
                    stream.flush()
                    if _is_at(part, stream) and not os.fstat(stream.fileno()).st_size:
                        part.unlink()
                return


def _is_at(path: Path, stream: BinaryIO) -> bool:
    """Whether the open file still has that path. Another process may rename or remove it until it is locked."""
    try:
        return os.path.samestat(path.stat(), os.fstat(stream.fileno()))
    except FileNotFoundError:
        return False


@contextmanager
def _progress(file: str, size: int | None, had: int) -> Iterator[Callable[[int], object]]:
    """A progress bar for a large file, where the client shows its own."""
    from huggingface_hub.utils.tqdm import tqdm

    if (size or 0) < BAR_FROM:
        yield lambda n: None
        return
    with tqdm(total=size, initial=had, unit="B", unit_scale=True, desc=file[-40:]) as bar:  # type: ignore[no-untyped-call]
        yield bar.update


def _link(path: Path, blob: Path) -> None:
    """Put a file of the cache into a snapshot."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.symlink_to(os.path.relpath(blob, path.parent))
    except FileExistsError:
        return  # another process was quicker
    except OSError:  # a file system without links
        blob.replace(path)
