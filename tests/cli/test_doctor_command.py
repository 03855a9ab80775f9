"""`mlxgen doctor` says what it runs on, and names what is slow."""

import json

import pytest
from click.testing import CliRunner

from mlxgen import blas
from mlxgen.cli.commands.doctor import doctor


def test_all_that_it_promises_is_there_without_a_network() -> None:
    done = CliRunner().invoke(doctor, ["--offline", "--json"])
    entries = json.loads(done.stdout)
    assert done.exit_code == 0
    assert entries["hub"]["reached"] is None
    assert entries["versions"]["mlx"]
    assert entries["blas"] == blas.loaded_library()


def test_a_missing_blas_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_loaded", None)
    monkeypatch.setattr("sys.platform", "linux")
    done = CliRunner().invoke(doctor, ["--offline"])
    assert "reference BLAS" in done.stdout


@pytest.mark.parametrize(("library", "advised"), [("/lib/libopenblas.so.0", True), ("/lib/libmkl_rt.so.3", False)])
def test_a_quicker_blas_is_named(monkeypatch: pytest.MonkeyPatch, library: str, advised: bool) -> None:
    monkeypatch.setattr(blas, "_loaded", library)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert ("mlxgen[mkl]" in CliRunner().invoke(doctor, ["--offline"]).stdout) == advised


def test_a_hub_that_does_not_answer_is_advice_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    done = CliRunner().invoke(doctor, [])
    assert done.exit_code == 0
    assert "not reached" in done.stdout
