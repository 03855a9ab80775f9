"""A file is replaced as a whole or not at all, and nothing is left beside it."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mlxgen.atomic_file import remove_leftovers, replacing_file

from .support.devices import linux_only


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_file_is_replaced_when_the_block_ends(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("old")
    with replacing_file(file) as part:
        assert part.parent == tmp_path and part.suffix == ".html" and part.read_text() == ""
        part.write_text("new")
        assert file.read_text() == "old"
    assert file.read_text() == "new" and names(tmp_path) == ["page.html"]


def test_a_block_that_raises_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    for before in (None, "old"):
        if before is not None:
            file.write_text(before)
        with pytest.raises(KeyboardInterrupt), replacing_file(file) as part:
            part.write_text("half")
            raise KeyboardInterrupt
        assert names(tmp_path) == ([] if before is None else ["page.html"])
    assert file.read_text() == "old"


def test_an_error_names_the_file_and_not_its_replacement(tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "page.html"
    with pytest.raises(FileNotFoundError) as caught, replacing_file(file):
        pass
    assert caught.value.filename == str(file)


def test_permissions_are_kept_and_new_files_follow_the_umask(tmp_path: Path) -> None:
    file, plain = tmp_path / "x", tmp_path / "plain"
    with replacing_file(file):
        pass
    plain.touch()
    assert file.stat().st_mode == plain.stat().st_mode
    file.chmod(0o600)
    with replacing_file(file):
        pass
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "x.txt")
    with replacing_file(tmp_path / "link") as part:
        part.write_text("new")
    assert (tmp_path / "link").is_symlink() and names(tmp_path / "real") == ["x.txt"]
    assert (tmp_path / "link").read_text() == "new"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with replacing_file(pipe) as part:
        assert part == pipe
    assert stat.S_ISFIFO(pipe.stat().st_mode) and names(tmp_path) == ["pipe"]


def test_a_folder_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), replacing_file(tmp_path):
        pass
    with pytest.raises(FileNotFoundError), replacing_file(tmp_path / "none" / "x"):
        pass
    assert names(tmp_path) == []


KILLED = """
import os, signal, sys
from mlxgen.atomic_file import replacing_file
with replacing_file(sys.argv[1]) as part:
    part.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    file = tmp_path / "a [1].txt"
    file.write_text("old")
    (tmp_path / ".a [1].notes.part.txt").write_text("somebody's own")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False, timeout=60, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(names(tmp_path)) == 3 and file.read_text() == "old"
    with replacing_file(file) as part:
        part.write_text("new")
    assert file.read_text() == "new" and names(tmp_path) == [".a [1].notes.part.txt", "a [1].txt"]


def test_two_writers_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    with replacing_file(file) as first:
        first.write_text("first")
        with replacing_file(file) as second:  # removes what is left over, and the first is not
            second.write_text("second")
        remove_leftovers(file)
        assert file.read_text() == "second"
    assert file.read_text() == "first" and names(tmp_path) == ["x.txt"]


def test_the_data_is_on_the_disk_before_the_file_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    replace = Path.replace
    monkeypatch.setattr(os, "fsync", lambda _: done.append("written"))
    monkeypatch.setattr(Path, "replace", lambda part, path: (done.append("renamed"), replace(part, path))[1])
    with replacing_file(tmp_path / "x.txt") as part:
        part.write_text("new")
    assert done == ["written", "renamed"]


@linux_only("it has a list of open files")
def test_no_file_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with replacing_file(tmp_path / "x.txt") as part:
            part.write_text("new")
        with pytest.raises(RuntimeError), replacing_file(tmp_path / "x.txt"):
            raise RuntimeError
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_error_says_which_file_and_keeps_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No space left on device: .*x\.txt"), replacing_file(tmp_path / "x.txt"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(OSError, match=r"^only words$"), replacing_file(tmp_path / "x.txt"):
        raise OSError("only words")
