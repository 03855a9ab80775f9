"""Sources that cannot be converted are refused in one line, and nothing is left behind."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mlxgen.cli.main import main
from mlxgen.errors import MlxgenError, ModelError
from mlxgen.weights import convert
from mlxgen.weights.conversion.output_format import default_name
from mlxgen.weights.conversion.weight_format import WeightFormat

from ...support.models import tiny_gpt2

Change = Callable[[Path], None]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tiny_gpt2().write(tmp_path / "source")


def rewrite(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def missing_shard(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "openai-community/gpt2"}')
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")


def emptied(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


CASES: dict[str, tuple[Change, str]] = {
    "truncated": (truncate, "cut off"),
    "no header": (
        lambda f: (f / "model.safetensors").write_bytes(b"x" * 400) and None,
        "not a complete safetensors file",
    ),
    "wrong header": (
        lambda f: (f / "model.safetensors").write_bytes(b"\x03\0\0\0\0\0\0\0{]}" + b"x" * 99) and None,
        "not JSON",
    ),
    "missing shard": (missing_shard, "model-00002-of-00002.safetensors, which is missing"),
    "other shapes": (lambda f: rewrite(f, n_positions=65), "wpe.weight has shape [64, 32], not [65, 32]"),
    "too few layers": (lambda f: rewrite(f, n_layer=3), "missing transformer.h.2.ln_1.weight"),
    "an adapter": (adapter, "is an adapter of openai-community/gpt2, not a whole model"),
    "gpt_neo": (lambda f: rewrite(f, model_type="gpt_neo"), "gpt_neo"),
    "gptj": (lambda f: rewrite(f, model_type="gptj"), "gptj"),
    "llama": (lambda f: rewrite(f, model_type="llama"), "llama"),
    "empty": (emptied, "an empty folder"),
    "not there": (shutil.rmtree, "no such folder"),
    "no config": (lambda f: (f / "config.json").unlink(), "no config.json"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no weights"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "--vocab"),
    "broken tokenizer": (lambda f: (f / "tokenizer.json").write_text("{") and None, "--vocab"),
    "broken config": (lambda f: (f / "config.json").write_text("{") and None, "not valid JSON"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_source_is_told_in_one_line_with_status_1(tmp_path: Path, source: Path, case: str) -> None:
    change, told = CASES[case]
    change(source)
    out = tmp_path / "made" / "out"
    result = CliRunner().invoke(main, ["convert", str(source), "-o", str(out)])
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1
    assert told in result.stderr and not result.stdout
    assert {path.name for path in tmp_path.iterdir()} <= {"source"}


def test_files_of_other_formats_are_named(tmp_path: Path) -> None:
    for name, told in (("tf_model.h5", "TensorFlow"), ("flax_model.msgpack", "Flax")):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(MlxgenError, match=told):
            convert(tmp_path / name, tmp_path / "out")


@pytest.mark.parametrize("wrong", [["-q", "5"], ["--dtype", "int8"], ["--keep-head"], ["-d", "-q", "4"], []])
def test_wrong_use_has_status_2(source: Path, wrong: list[str]) -> None:
    arguments = ["convert", str(source), *wrong] if wrong else ["convert"]
    assert CliRunner().invoke(main, arguments).exit_code == 2


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS's names are UTF-8")
def test_a_name_that_is_not_utf_8_is_refused_as_such(tmp_path: Path) -> None:
    folder = tiny_gpt2().write(tmp_path / "bad").rename(tmp_path / "bad\udcff")
    good = tiny_gpt2().write(tmp_path / "good")
    for source, options in ((folder, {}), (good, {"adapter": folder})):
        with pytest.raises(ModelError, match=r"udcff': is not UTF-8; rename it"):
            convert(source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ModelError, match=r"udcff': is not UTF-8; rename it"):
        convert(folder)


def test_a_folder_may_have_the_longest_name_that_there_is(tmp_path: Path) -> None:
    name = "a" * 252  # with ".index" it would be too long
    folder = tiny_gpt2().write(tmp_path / name)
    assert default_name(str(folder), "hf", WeightFormat()) == f"{name}-hf"
