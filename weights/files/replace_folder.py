"""Replacing a folder as a whole: it is written beside its place and renamed into it, so a crash leaves the old one.

A folder that is being written is locked, and the system drops the lock with the process. So the next run can tell what
a killed process left behind, and removes it. (Single files have `mlxgen.atomic_file`.)
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path

from mlxgen.errors import MlxgenError, printable, reason_of
from mlxgen.weights.files.model_folder import ALL_FILES

TRIES = 5
LEFTOVER = re.compile(r"\.(?P<name>.+)\.mlxgen-(?P<kind>new|old|gone)-\w+")


@contextmanager
def replacing_folder(target: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield an empty folder beside ``target``; when the block ends, it takes the place of ``target``.

    If the block raises, ``target`` stays as it was and the new folder is removed. force: a model folder that exists
    already is replaced. Raises MlxgenError if ``target`` cannot be written.
    """
    check_free(target, force=force)
    with creating(target.parent):
        try:
            new, lock = _new_folder(target)
        except OSError as error:
            place = target if error.errno == errno.ENAMETOOLONG else target.parent
            raise MlxgenError(f"{place}: cannot be written to ({reason_of(error)})") from None
        try:
            yield new
            new.chmod(0o777 & ~_umask())  # mkdtemp's folders are for their owner alone
            _move(new, target)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        finally:
            if lock is not None:
                os.close(lock)


def check_free(target: Path, *, force: bool) -> None:
    """Raise MlxgenError unless a model may be written to ``target``. Interrupted runs are cleaned up first."""
    try:
        str(target).encode()
        _check_free(target, force=force)
    except UnicodeEncodeError:
        raise MlxgenError(f"{str(target)!a}: is not UTF-8; choose another with --output") from None
    except OSError as error:
        name = printable(str(target), 200)
        raise MlxgenError(f"{name}: cannot be used ({reason_of(error)}); choose another with --output") from None


def _check_free(target: Path, *, force: bool) -> None:
    current = Path.cwd().resolve()
    if target.resolve() in (current, *current.parents):
        raise MlxgenError(
            f"{target}: is the current folder or contains it, so it is not replaced; choose another with --output"
        )
    remove_leftovers(target.parent)
    if not target.is_symlink() and not target.exists():
        return
    if target.is_symlink():
        raise MlxgenError(f"{target}: is a link, which is not replaced; choose another folder with --output")
    if not target.is_dir():
        raise MlxgenError(f"{target}: exists and is not a folder; choose another with --output")
    content = list(target.iterdir())
    if not content:
        return
    if not force:
        raise MlxgenError(f"{target}: already exists; replace it with --force, or choose another folder with --output")
    if not (target / "config.json").is_file():
        raise MlxgenError(
            f"{target}: is not a model folder (it has no config.json), so it is not replaced; "
            "choose another folder with --output"
        )
    if foreign := foreign_content(target):
        raise MlxgenError(
            f"{target}: contains more than a model ({foreign}), so it is not replaced; "
            "choose another folder with --output"
        )


def foreign_content(folder: Path) -> str | None:
    """The name of something in the folder that is not part of a model, for a message; None if there is nothing."""
    content = sorted(folder.iterdir())
    folders = (f"{path.name}/" for path in content if path.is_dir())
    others = (path.name for path in content if not any(fnmatchcase(path.name, known) for known in ALL_FILES))
    foreign = next(folders, None) or next(others, None)
    return None if foreign is None else printable(foreign)


def remove_leftovers(parent: Path) -> None:
    """Remove what killed runs left in ``parent``, and move a folder back that one had moved aside but not replaced."""
    if not parent.is_dir():
        return
    with suppress(OSError):
        for path in parent.iterdir():
            found = LEFTOVER.fullmatch(path.name)
            if found is None or not path.is_dir():
                continue
            lock = _lock(path)
            if lock is None:
                continue  # another process is writing it
            try:
                if found["kind"] == "old" and not (parent / found["name"]).exists():
                    path.rename(parent / found["name"])
                else:
                    _remove(path)
            finally:
                os.close(lock)


def _new_folder(target: Path) -> tuple[Path, int | None]:
    """An empty folder beside ``target`` and its lock. Until it is locked, another run may take it for a leftover."""
    for _ in range(TRIES):
        new = Path(tempfile.mkdtemp(prefix=f".{target.name}.mlxgen-new-", dir=target.parent))
        lock = _lock(new)
        if lock is not None and new.exists():
            return new, lock
        if lock is not None:
            os.close(lock)
        with suppress(OSError):
            new.rmdir()
    return Path(
        tempfile.mkdtemp(prefix=f".{target.name}.mlxgen-new-", dir=target.parent)
    ), None  # no locks on this disk


def _move(new: Path, target: Path) -> None:
    """Rename the new folder to ``target``, and remove the old one."""
    if not target.exists():
        new.rename(target)
        return
    old = target.with_name(new.name.replace(".mlxgen-new-", ".mlxgen-old-"))
    lock = _lock(target)  # or another run would move it back
    try:
        target.rename(old)
        try:
            new.rename(target)
        except BaseException:
            old.rename(target)
            raise
        _remove(old)
    finally:
        if lock is not None:
            os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a folder that was moved aside. Its name says so first: what is left after a kill is never moved back."""
    with suppress(OSError):
        folder = folder.rename(folder.with_name(folder.name.replace(".mlxgen-old-", ".mlxgen-gone-")))
    shutil.rmtree(folder, ignore_errors=True)


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


@contextmanager
def creating(folder: Path) -> Iterator[None]:
    """Create the folder and those above it. If the block raises, those that did not exist are removed again.

    Raises MlxgenError if it cannot be created.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]  # innermost first
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MlxgenError(f"{folder}: cannot be created ({reason_of(error)})") from None
        yield
    except BaseException:
        for path in missing:
            with suppress(OSError):
                path.rmdir()
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
