"""A folder is written beside its place and renamed into it: there is the old one or the new one, never a half.

What a killed process leaves is swept up by the next run. A folder that is being written is locked, and the system takes
the lock away with the process.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path

from mlxgen.errors import MlxgenError
from mlxgen.weights.files.headers import shown
from mlxgen.weights.hub.resolve import CARD, PICKLED, SMALL_FILES

#: What a model folder is made of, here and elsewhere. A folder that holds anything besides is never replaced.
MODEL_FILES = (
    *SMALL_FILES,
    *CARD,
    *PICKLED,
    "model*.safetensors",
    "model.safetensors.index.json",
    "chat_template.json",
    "encoder.json",
    "vocab.bpe",
    "NOTICE*",
    "training_args.bin",
    ".gitattributes",
    ".DS_Store",
)
TRIES = 5
LEFTOVER = re.compile(r"\.(?P<name>.+)\.mlxgen-(?P<kind>new|old)-\w+")


@contextmanager
def written_beside(place: Path, *, force: bool = False) -> Iterator[Path]:
    """An empty folder that takes ``place`` when the block ends well, and is gone when it does not.

    force: a model folder that is there already is replaced. Raises MlxgenError where the place is taken.
    """
    check_free(place, force=force)
    made = _make_parents(place.parent)
    try:
        new, lock = _new_folder(place)
    except OSError as error:
        _remove_empty(made)
        raise MlxgenError(f"{place.parent}: cannot be written to ({error.strerror or error})") from None
    try:
        yield new
        new.chmod(0o777 & ~_umask())  # mkdtemp's folders are for their owner alone
        _take(new, place)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        _remove_empty(made)
        raise
    finally:
        if lock is not None:
            os.close(lock)


def check_free(place: Path, *, force: bool) -> None:
    """Raise MlxgenError unless a model may be written to ``place``. First, finish or undo what was broken off there."""
    here = Path.cwd().resolve()
    if place.resolve() in (here, *here.parents):
        raise MlxgenError(f"{place}: the current folder or one above it is not replaced; choose another with --output")
    sweep(place.parent)
    if not place.is_symlink() and not place.exists():
        return
    if not place.is_dir() or place.is_symlink():
        raise MlxgenError(f"{place}: exists and is not a folder; choose another with --output")
    content = list(place.iterdir())
    if not content:
        return
    if not force:
        raise MlxgenError(f"{place}: exists already; --force replaces it, or choose another folder with --output")
    if not (place / "config.json").is_file():
        raise MlxgenError(f"{place}: not a model folder (no config.json), so it is not replaced; choose another folder")
    inner = next((path for path in content if path.is_dir()), None)
    if inner is not None:
        raise MlxgenError(
            f"{place}: holds more than a model ({inner.name}/), so it is not replaced; choose another folder"
        )
    names = sorted(path.name for path in content)
    other = next((name for name in names if not any(fnmatchcase(name, known) for known in MODEL_FILES)), None)
    if other is not None:
        raise MlxgenError(
            f"{place}: holds more than a model ({shown(other)}), so it is not replaced; choose another folder"
        )


def sweep(parent: Path) -> None:
    """Remove what killed runs left in ``parent``; put a folder back that one had moved aside and not yet replaced."""
    if not parent.is_dir():
        return
    with suppress(OSError):
        for path in parent.iterdir():
            found = LEFTOVER.fullmatch(path.name)
            if found is None or not path.is_dir():
                continue
            lock = _lock(path)
            if lock is None:
                continue  # another process is at work
            try:
                if found["kind"] == "old" and not (parent / found["name"]).exists():
                    path.rename(parent / found["name"])
                else:
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _new_folder(place: Path) -> tuple[Path, int | None]:
    """An empty folder beside ``place`` and its lock. Until it is locked, another run's sweep may remove it."""
    for _ in range(TRIES):
        new = Path(tempfile.mkdtemp(prefix=f".{place.name}.mlxgen-new-", dir=place.parent))
        lock = _lock(new)
        if lock is not None and new.exists():
            return new, lock
        if lock is not None:
            os.close(lock)
        with suppress(OSError):
            new.rmdir()
    return Path(tempfile.mkdtemp(prefix=f".{place.name}.mlxgen-new-", dir=place.parent)), None  # no locks on this disk


def _take(new: Path, place: Path) -> None:
    if not place.exists():
        new.rename(place)
        return
    old = place.with_name(new.name.replace(".mlxgen-new-", ".mlxgen-old-"))
    lock = _lock(place)  # else another run's sweep would put it back
    try:
        place.rename(old)
        try:
            new.rename(place)
        except BaseException:
            old.rename(place)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        if lock is not None:
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """An open, locked descriptor of the folder; None where another process holds it."""
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if descriptor is not None:
            os.close(descriptor)
        return None
    return descriptor


def _make_parents(folder: Path) -> list[Path]:
    """Make the folder and those above it; the ones that were not there, innermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _remove_empty(missing)
        raise MlxgenError(f"{folder}: cannot be made ({error.strerror or error})") from None
    return missing


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
