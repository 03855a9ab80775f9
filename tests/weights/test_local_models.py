"""`mlxgen models`: what is here, and what could be."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import mlxgen
from mlxgen.cli.main import main
from mlxgen.errors import ModelError, OptionError
from mlxgen.weights import ALIASES, convert, resolve
from mlxgen.weights.hub import converted

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
    Path("mlxgen-home/models/notes").mkdir()
    here = {entry["name"]: entry for entry in listed()}
    converted = here["tales-8bit"]
    assert converted["kind"] == "converted" and converted["n_parameters"] == 36544 and converted["quantized_bits"] == 8
    assert converted["bytes"] == sum(path.stat().st_size for path in Path("mlxgen-home/models/tales-8bit").iterdir())
    cached = here["openai-community/gpt2"]
    assert cached["kind"] == "cached" and cached["bytes"] == len(CONFIG) + 10 and not cached["needs_convert"]
    assert here["someone/else"]["needs_convert"] is True
    assert "notes" not in here
    assert "gpt2" not in here and here["distilgpt2"]["kind"] == "alias"
    assert {entry["name"] for entry in here.values() if entry["kind"] == "alias"} == set(ALIASES) - {"gpt2"}
    text = CliRunner().invoke(main, ["models"]).stdout
    assert "alias gpt2" in text and "8 bits" in text and "mlxgen convert someone/else" in text


def test_a_machine_without_any(hub: Hub) -> None:
    assert not hub.asked
    assert {entry["kind"] for entry in listed()} <= {"alias", "bundled"}
    assert "distilbert/distilgpt2" in CliRunner().invoke(main, ["models"]).stdout
    assert not hub.asked  # nothing is asked for


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["models", *arguments])


def test_the_name_of_a_conversion_says_its_format_and_opens_it_anywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options, name in (
        ({}, "tales"),
        ({"quantize": 4, "group_size": 32}, "tales-4bit"),
        ({"dtype": "float16"}, "tales-float16"),
    ):
        done = convert(folder, **options)  # type: ignore[arg-type]
        assert (done.name, done.folder.name) == (name, name)
    monkeypatch.chdir("/")
    assert mlxgen.load("tales-4bit").config.n_layer == 2
    assert convert("tales-4bit", quantize=8, group_size=32).name == "tales-8bit"
    assert convert("tales-8bit", dequantize=True, force=True).name == "tales"
    with pytest.raises(OptionError, match="local folder"):
        mlxgen.load("tales", revision="main")


def test_a_conversion_never_takes_the_name_of_another_model(folder: Path, tmp_path: Path) -> None:
    for name in ("gpt2", "DialoGPT-medium", "fairy-tales"):
        assert convert(folder.rename(folder.with_name(name)), group_size=64).name == f"{name}-mlx"
        folder = folder.with_name(name)
    done = convert(folder, converted.converted_folder() / "gpt2")  # asked for: it opens by its path
    assert done.name == str(done.folder) and str(done.folder) in {entry["name"] for entry in listed()}


def test_the_place_of_converted_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert converted.converted_folder() == tmp_path / "mlxgen-home" / "models"
    monkeypatch.delenv("MLXGEN_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert converted.converted_folder() == Path("/home/someone/.local/share/mlxgen/models")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert converted.converted_folder() == Path("/data/mlxgen/models")
    monkeypatch.setattr("sys.platform", "darwin")
    assert converted.converted_folder() == Path("/home/someone/Library/Application Support/mlxgen/models")


def test_only_converted_models_are_removed(hub: Hub, folder: Path) -> None:
    hub.repos["openai-community/gpt2"] = {"config.json": CONFIG, "model.safetensors": b"0123456789"}
    cached = resolve("gpt2")
    kept, gone = convert(folder).folder, convert(folder, quantize=8, group_size=32).folder
    done = run("rm", "tales-8bit")
    assert done.exit_code == 0 and str(gone) in done.stderr and not gone.exists() and kept.exists()
    for name, way_out in (
        ("tales-8bit", "mlxgen models"),
        ("fairy-tales", "bundled"),
        ("gpt2", "hf cache rm model/openai-community/gpt2"),
        (str(folder), "no such converted model"),
        ("../models/tales", "no such converted model"),
    ):
        done = run("rm", name)
        assert done.exit_code == 1 and way_out in done.stderr and done.stderr.count("\n") == 1
    (kept / "diary.txt").write_text("dear")
    assert "diary.txt" in run("rm", "tales").stderr
    assert (kept / "diary.txt").exists() and folder.exists() and cached.exists()


def test_a_model_that_cannot_be_removed_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = convert(folder).folder

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "config.json")

    monkeypatch.setattr("os.unlink", refuse)
    done = run("rm", "tales")
    assert done.exit_code == 1
    assert done.stderr == f"Error: {kept}: could not be removed (Permission denied)\n"


def test_an_error_in_a_folder_that_hides_a_model_of_the_hub_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gpt2").mkdir()
    for config in (None, "{}", '{"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1}'):
        if config:
            Path("gpt2/config.json").write_text(config)
        for use in (mlxgen.load, convert):
            with pytest.raises(ModelError, match=r"gpt2.*: .*hides openai-community/gpt2 on the hub"):
                use("gpt2")
    with pytest.raises(ModelError) as other:
        mlxgen.load("./gpt2")
    assert "hides" not in str(other.value)


def test_a_pipe_in_place_of_a_config_is_not_waited_for(hub: Hub) -> None:
    Path("mlxgen-home/models/pipe").mkdir(parents=True)
    os.mkfifo("mlxgen-home/models/pipe/config.json")
    Path("mlxgen-home/models/pipe/model.safetensors").write_bytes(b"")
    assert not [entry for entry in listed() if entry["name"] == "pipe"]
