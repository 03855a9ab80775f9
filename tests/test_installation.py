"""The advice to install a package is a command that works as printed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from mlxgen.installation import install_command

ROOT = Path(__file__).parent.parent


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with one package, in place of an index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    info = "tale-1.0.dist-info"
    with zipfile.ZipFile(folder / "tale-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tale.py", "text = 'once'\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tale\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"tale.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return folder


@pytest.mark.skipif(not shutil.which("pip3"), reason="needs a pip outside the environment")
def test_the_printed_command_installs_into_an_environment_without_pip(wheels: Path, tmp_path: Path) -> None:
    """The README's environment, at a path with a space in it."""
    home = tmp_path / "my env"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    env = os.environ | {"PYTHONPATH": str(ROOT), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    script = "from mlxgen.installation import install_command; print(install_command('tale'))"
    asked = subprocess.run([python, "-c", script], env=env, capture_output=True, text=True, check=True)
    subprocess.run(asked.stdout, shell=True, env=env | {"PYTHONPATH": ""}, check=True, capture_output=True)
    found = subprocess.run([python, "-c", "import tale; print(tale.text)"], capture_output=True, text=True)
    assert found.stdout == "once\n", found.stderr


def test_where_pip_is_installed_the_interpreter_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxgen.installation.find_spec", lambda name: object())
    monkeypatch.setattr(sys, "executable", "/a b/python")
    assert install_command("torch", "transformers>=5") == "'/a b/python' -m pip install torch 'transformers>=5'"


def test_without_any_pip_on_the_path_the_base_interpreter_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxgen.installation.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(sys, "executable", "/env/bin/python")
    monkeypatch.setattr(sys, "_base_executable", "/base/python3")
    assert install_command("torch") == "/base/python3 -m pip --python /env/bin/python install torch"


def test_no_message_advises_extras_which_are_on_no_index() -> None:
    for folder in ("mlxgen", "weights", "cli"):
        for file in (ROOT / folder).rglob("*.py"):
            assert "mlxgen[" not in file.read_text(), file
