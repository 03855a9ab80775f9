"""Fixtures that many tests share: small models with random weights."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

os.environ["MLX_ENABLE_TF32"] = "0"  # what is promised is promised without it

import mlxgen  # noqa: F401  (first, so that its BLAS is loaded before anything imports MLX)  # isort: skip
import pytest
from hypothesis import HealthCheck, settings

from mlxgen import device
from mlxgen.model import Model

from .support.hub import hub, no_network  # noqa: F401  (fixtures)
from .support.models import tiny_gpt2

settings.register_profile(
    "mlxgen", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("mlxgen")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--runslow", action="store_true", help="run thousands of damaged files instead of hundreds")


def pytest_configure(config: pytest.Config) -> None:
    # transformers 5.24 renames the keyword argument; older ones know only this name
    config.addinivalue_line("filterwarnings", "ignore:.past_key_values:FutureWarning")


# Where MLX compiles for the CPU, it runs a C++ compiler; without one it leaves the operations as they are.
needs_compiler = pytest.mark.skipif(
    device.on_cpu() and shutil.which("g++") is None, reason="MLX compiles for the CPU with g++"
)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Converted models and the chat's history go to a folder of the test, not to the user's."""
    monkeypatch.setenv("MLXGEN_HOME", str(tmp_path / "mlxgen-home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mlxgen-state"))


@pytest.fixture(scope="session")
def build_model() -> Callable[..., Model]:
    """build_model(seed=0, **entries of config.json): a tiny random Model in float32, as of support.models."""
    return lambda seed=0, **entries: tiny_gpt2(seed, **entries).model()


@pytest.fixture(scope="session")
def model(build_model: Callable[..., Model]) -> Model:
    """The small model most tests use: 64 positions, 2 layers, 32 wide, 4 heads."""
    return build_model()


@pytest.fixture(scope="session")
def short_model(build_model: Callable[..., Model]) -> Model:
    """A model whose table of 32 positions is soon full."""
    return build_model(n_positions=32)


@pytest.fixture(scope="session")
def draft_model(build_model: Callable[..., Model]) -> Model:
    """Another model of the same vocabulary, with a shorter table."""
    return build_model(seed=5, n_positions=16, n_layer=1)
