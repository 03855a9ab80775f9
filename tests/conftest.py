"""Fixtures that many tests share: a small tokenizer, and small models with random weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlxgen  # first, so that its BLAS is loaded before anything imports MLX  # isort: skip
import mlx.core as mx
import pytest
from hypothesis import HealthCheck, settings

from mlxgen import device
from mlxgen.model import Model
from mlxgen.network.config import GPT2Config
from mlxgen.network.decoder import GPT2
from mlxgen.text.tokenizer import Tokenizer, load_tokenizer

from . import oracles
from .small_hub import hub, no_network  # noqa: F401  (fixtures)

settings.register_profile(
    "mlxgen", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("mlxgen")


def pytest_configure(config: pytest.Config) -> None:
    # transformers 5.24 renames the keyword argument; older ones know only this name
    config.addinivalue_line("filterwarnings", "ignore:.past_key_values:FutureWarning")


# Where MLX compiles for the CPU, it runs a C++ compiler; without one it leaves the operations as they are.
needs_compiler = pytest.mark.skipif(
    device.on_cpu() and shutil.which("g++") is None, reason="MLX compiles for the CPU with g++"
)

SMALL = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a byte-level tokenizer.json of about 280 tokens; the last is <|endoftext|>."""
    folder = tmp_path_factory.mktemp("tokenizer")
    oracles.byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return load_tokenizer(tokenizer_folder)


@pytest.fixture(scope="session")
def config_dict(tokenizer: Tokenizer) -> Callable[..., dict[str, Any]]:
    """config.json's entries of a small GPT-2 with the test tokenizer; keyword arguments change some."""

    def make(**changes: Any) -> dict[str, Any]:
        size = tokenizer.vocab_size
        return {"vocab_size": size, **SMALL, "bos_token_id": size - 1, "eos_token_id": size - 1, **changes}

    return make


@pytest.fixture(scope="session")
def build_model(config_dict: Callable[..., dict[str, Any]], tokenizer: Tokenizer) -> Callable[..., Model]:
    """A small random Model in float32: build_model(seed=0, **config entries)."""

    def build(seed: int = 0, **changes: Any) -> Model:
        config = GPT2Config.from_dict({"model_type": "gpt2", **config_dict(**changes)})
        decoder = GPT2(config)
        decoder.load_weights([(k, mx.array(v)) for k, v in oracles.random_weights(config, seed).items()], strict=True)
        mx.eval(decoder.parameters())
        return Model("test", config, decoder, tokenizer, frozenset(config.eos_token_ids))

    return build


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


@pytest.fixture(scope="session")
def package() -> Any:
    return mlxgen
