"""Tiny GPT-2s for the tests of the terminal."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import mlxgen
from mlxgen.cli.main import main

from ..support.models import tiny_gpt2


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_gpt2().write(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="session")
def model(folder: str) -> mlxgen.Model:
    return mlxgen.load(folder)


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A still smaller one, whose table of 32 positions is soon full."""
    tiny = tiny_gpt2(n_positions=32, n_embd=16, n_layer=1, n_head=2)
    return tiny.write(tmp_path_factory.mktemp("small") / "tiny")


@pytest.fixture
def run_here(small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """run_here("batch", "in.jsonl", ...) in an empty folder, on the small model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLXGEN_MODEL", str(small_folder))

    def call(*arguments: str, stdin: str | bytes = "") -> Result:
        return CliRunner().invoke(main, list(arguments), input=stdin)

    return call
