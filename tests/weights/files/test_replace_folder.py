"""A folder is replaced as a whole or not at all: existing folders, failures, kill -9, full disks."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from mlxgen.errors import MlxgenError
from mlxgen.weights import convert
from mlxgen.weights.files.replace_folder import remove_leftovers, replacing_folder
from mlxgen.weights.hub.names import BUNDLED_FOLDER

from ...support.models import tiny_gpt2


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gpt2().write(tmp_path_factory.mktemp("source") / "tales")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_default_place_is_the_same_wherever_one_stands(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "mlxgen-home" / "models"
    assert convert(source).folder == place / "tales"
    assert [path.name for path in place.iterdir()] == ["tales"]
    assert oct((place / "tales").stat().st_mode & 0o777) == oct(place.stat().st_mode & 0o777)
    with pytest.raises(MlxgenError, match="--force"):
        convert(source)
    before = content(place / "tales")
    monkeypatch.chdir("/")
    assert convert("tales", force=True).folder == place / "tales"  # the source is the place
    assert content(place / "tales").keys() == before.keys()


def test_only_a_model_folder_is_ever_replaced(tmp_path: Path, source: Path) -> None:
    home = tmp_path / "home"
    (home / "documents").mkdir(parents=True)
    (home / "letter.txt").write_text("dear")
    for reason in ("no config.json", "more than a model"):
        with pytest.raises(MlxgenError, match=reason):
            convert(source, home, force=True)
        assert (home / "letter.txt").read_text() == "dear"
        (home / "config.json").write_text("{}")
    (home / "documents").rmdir()
    with pytest.raises(MlxgenError, match=r"more than a model \(letter.txt\)"):
        convert(source, home, force=True)
    assert (home / "letter.txt").read_text() == "dear"
    with pytest.raises(MlxgenError, match="not a folder"):
        convert(source, home / "letter.txt", force=True)
    (tmp_path / "empty").mkdir()
    assert convert(source, tmp_path / "empty").folder == tmp_path / "empty"


@pytest.mark.parametrize("output", [".", "..", "../..", "", "new/..", "/"])
def test_the_current_folder_and_those_above_it_are_refused(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    with pytest.raises(MlxgenError, match="the current folder or contains it") as caught:
        convert(source, output, force=True)
    assert "\n" not in str(caught.value)
    assert not any(Path().iterdir())
    done = convert(source, "c/../../d/e/..")
    assert done.folder == Path("../d") and "# d\n" in (tmp_path / "a" / "d" / "README.md").read_text()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["b", "d"]


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_what_fails_half_way_leaves_the_old_folder_or_none(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, old: bool, error: BaseException
) -> None:
    place = tmp_path / "made" / "tales"
    if old:
        convert(source, place, dtype="float16")
    before = content(place) if old else None

    def fails(done: int, total: int, name: str) -> None:
        if done == 7:
            raise error

    kind = MlxgenError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(kind) as caught:
        convert(source, place, force=True, progress=fails)
    if kind is MlxgenError:
        assert "no space left for the model" in str(caught.value) and "\n" not in str(caught.value)
    if old:
        assert [path.name for path in place.parent.iterdir()] == ["tales"] and content(place) == before
    else:
        assert not place.parent.exists()  # neither the folder nor those made for it


def test_too_little_space_is_told_before_anything_is_written(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))  # type: ignore[attr-defined]
    with pytest.raises(MlxgenError, match="not enough space: the model takes"):
        convert(source, tmp_path / "out")
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_at_the_first_byte(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_open = Path.open

    def full(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        device = Path("/dev/full") if mode == "wb" and self.suffix == ".safetensors" else self
        return plain_open(device, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(MlxgenError, match="no space"):
        convert(source, tmp_path / "out")
    assert not any(tmp_path.iterdir())


KILLED = """
import os, signal, sys
from pathlib import Path
from mlxgen.weights import convert

def tensor(done, total, name):
    if done == 7:
        os.kill(os.getpid(), signal.SIGKILL)

rename = Path.rename
def swap(self, target):
    if ".mlxgen-new-" in self.name:
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)

if sys.argv[3] == "swap":
    Path.rename = swap
convert(sys.argv[1], sys.argv[2], force=True, progress=tensor if sys.argv[3] == "tensor" else None)
"""


@pytest.mark.parametrize(("at", "old"), [("tensor", False), ("tensor", True), ("swap", False), ("swap", True)])
def test_kill_9_leaves_the_old_folder_or_none_and_the_next_run_sweeps(
    tmp_path: Path, source: Path, at: str, old: bool
) -> None:
    place = tmp_path / "tales"
    if old:
        convert(source, place, dtype="float16")
    before = content(place) if old else None
    command = [sys.executable, "-c", KILLED, str(source), str(place), at]
    killed = subprocess.run(command, check=False, timeout=120, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert place.exists() == (old and at == "tensor")
    assert any(".mlxgen-new-" in path.name for path in tmp_path.iterdir())
    with pytest.raises(MlxgenError, match="no such folder"):
        convert(tmp_path / "nowhere" / "x", tmp_path / "another")  # any next run, even one that fails
    assert [path.name for path in tmp_path.iterdir()] == (["tales"] if old else [])
    if old:
        assert content(place) == before


HALF_REMOVED = """
import os, shutil, signal, sys
from mlxgen.weights import convert

def remove(folder, **_):
    os.unlink(os.path.join(folder, "config.json"))
    os.kill(os.getpid(), signal.SIGKILL)

shutil.rmtree = remove
convert(sys.argv[1], sys.argv[2], force=True)
"""


def test_a_kill_while_the_old_folder_is_removed_never_brings_it_back(tmp_path: Path, source: Path) -> None:
    place = convert(source, tmp_path / "tales", dtype="float16").folder
    killed = subprocess.run([sys.executable, "-c", HALF_REMOVED, str(source), str(place)], check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert (place / "config.json").exists() and len(list(tmp_path.iterdir())) == 2
    shutil.rmtree(place)  # the user does not want the new one either
    remove_leftovers(tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name",
    ["my.model", "NOTICE_of_divorce.pdf", "LICENSE_keys.txt", "model_draft.safetensors", "model-1-of-2.safetensors"],
)
def test_force_spares_files_that_merely_look_like_a_models(tmp_path: Path, source: Path, name: str) -> None:
    place = convert(source, tmp_path / "tales").folder
    (place / name).write_text("mine")
    with pytest.raises(MlxgenError, match=rf"more than a model \({re.escape(name)}\)"):
        convert(source, place, force=True)
    assert (place / name).read_text() == "mine"


def test_a_run_that_is_still_at_work_is_left_alone(tmp_path: Path, source: Path) -> None:
    with replacing_folder(tmp_path / "slow") as folder:
        (folder / "config.json").write_text("{}")
        convert(source, tmp_path / "quick")
        assert (folder / "config.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["quick", "slow"]


def test_a_sweep_before_the_new_folder_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, made = tempfile.mkdtemp, []

    def swept(*args: Any, **kwargs: Any) -> str:
        made.append(plain(*args, **kwargs))
        if len(made) == 1:
            remove_leftovers(tmp_path)
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept)
    with replacing_folder(tmp_path / "tales") as folder:
        (folder / "config.json").write_text("{}")
    assert len(made) == 2 and [path.name for path in tmp_path.iterdir()] == ["tales"]


def test_a_sweep_while_the_old_folder_is_aside(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(source, tmp_path / "tales", dtype="float16")
    rename = Path.rename

    def swept(self: Path, target: Path) -> Path:
        if ".mlxgen-new-" in self.name:
            remove_leftovers(tmp_path)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", swept)
    convert(source, tmp_path / "tales", dtype="bfloat16", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["tales"]
    assert '"bfloat16"' in (tmp_path / "tales" / "config.json").read_text()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_cannot_be_written(tmp_path: Path, source: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(MlxgenError, match="Permission denied"):
        convert(source, tmp_path / "out")
    tmp_path.chmod(0o700)


def test_the_bundled_model_is_never_replaced() -> None:
    before = {path.name: path.stat().st_mtime_ns for path in BUNDLED_FOLDER.iterdir()}
    with pytest.raises(MlxgenError, match="is the bundled model"):
        convert(BUNDLED_FOLDER, BUNDLED_FOLDER, force=True)
    assert {path.name: path.stat().st_mtime_ns for path in BUNDLED_FOLDER.iterdir()} == before


def test_a_link_and_a_name_too_long_are_named(tmp_path: Path, source: Path) -> None:
    link, long = tmp_path / "link", tmp_path / ("a" * 250)
    link.symlink_to(source)
    for target, what in ((link, "is a link, which is not replaced"), (long, "cannot be written to (File name too")):
        with pytest.raises(MlxgenError) as error:
            convert(source, target, force=True)
        assert str(error.value).startswith(f"{target}: {what}")
    assert link.is_symlink() and content(source)
