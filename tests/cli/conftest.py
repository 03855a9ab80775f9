"""A tiny GPT-2 for the tests of the terminal."""

import pytest

import mlxgen

from ..support.models import tiny_gpt2


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_gpt2().write(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="session")
def model(folder: str) -> mlxgen.Model:
    return mlxgen.load(folder)
