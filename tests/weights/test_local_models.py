"""`mlxgen models`: what is here, and what could be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mlxgen.cli.main import main
from mlxgen.weights import ALIASES, convert, resolve

from ..support.hub import CONFIG, Hub
from ..support.models import tiny_gpt2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_gpt2().write(tmp_path / "source" / "tales")


def listed() -> list[dict[str, Any]]:
    result = CliRunner().invoke(main, ["models", "--json"])
    assert result.exit_code == 0 and not result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_converted_and_cached_models_and_the_aliases_that_are_left(hub: Hub, folder: Path) -> None:
    hub.repos["openai-community/gpt2"] = {"config.json": CONFIG, "model.safetensors": b"0123456789"}
    hub.repos["someone/else"] = {"config.json": CONFIG, "pytorch_model.bin": b"01234"}
    resolve("gpt2")
    resolve("someone/else", pickled=True)
    convert(folder, quantize=8, group_size=32)
    Path("weights/notes").mkdir()
    here = {entry["name"]: entry for entry in listed()}
    converted = here["weights/tales"]
    assert converted["kind"] == "converted" and converted["n_parameters"] == 36544 and converted["quantized_bits"] == 8
    assert converted["bytes"] == sum(path.stat().st_size for path in Path("weights/tales").iterdir())
    cached = here["openai-community/gpt2"]
    assert cached["kind"] == "cached" and cached["bytes"] == len(CONFIG) + 10 and not cached["needs_convert"]
    assert here["someone/else"]["needs_convert"] is True
    assert "weights/notes" not in here
    assert "gpt2" not in here and here["distilgpt2"]["kind"] == "alias"
    assert {entry["name"] for entry in here.values() if entry["kind"] == "alias"} == set(ALIASES) - {"gpt2"}
    text = CliRunner().invoke(main, ["models"]).stdout
    assert "alias gpt2" in text and "8 bits" in text and "mlxgen convert someone/else" in text


def test_a_machine_without_any(hub: Hub) -> None:
    assert not hub.asked
    assert {entry["kind"] for entry in listed()} <= {"alias", "bundled"}
    assert "distilbert/distilgpt2" in CliRunner().invoke(main, ["models"]).stdout
    assert not hub.asked  # nothing is asked for
