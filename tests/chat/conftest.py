"""Small models for the tests of conversations."""

from pathlib import Path

import pytest

from mlxgen import load
from mlxgen.model import Model

from ..support.chats import CHATML, write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "bytes")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(str(folder))


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(str(write_model(tmp_path_factory.mktemp("models") / "chatml", template=CHATML)))
