"""Only regular files are read: a pipe is refused at once, where reading it would wait for ever."""

import os
from pathlib import Path

import pytest

from mlxgen.errors import ModelError
from mlxgen.json_file import read_json
from mlxgen.regular_file import open_regular
from mlxgen.safetensors_header import read_header


def test_a_regular_file_is_read_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as stream:
        assert stream.read() == b"abc"


def test_pipes_devices_and_folders_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = os.listdir("/dev/fd")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"not a file|directory"):
            open_regular(path)
    assert len(os.listdir("/dev/fd")) == len(before)
    with pytest.raises(OSError, match="not a file"):
        read_header(tmp_path / "pipe")
    with pytest.raises(ModelError, match=r"pipe.*not a file"):
        read_json(tmp_path / "pipe")
