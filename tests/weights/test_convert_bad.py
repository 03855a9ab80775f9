"""Sources that are not what they should be: one line each, and nothing left behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from click.testing import CliRunner

from mlxgen.cli.main import main
from mlxgen.errors import MlxgenError
from mlxgen.weights import convert
from mlxgen.weights.conversion import converter, verification

from ..support.models import tiny_gpt2

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
    "LoRA adapter": (adapter, "LoRA adapter"),
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
    for name, told in (("tf_model.h5", "TensorFlow"), ("model.gguf", "llama.cpp"), ("flax_model.msgpack", "Flax")):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(MlxgenError, match=told):
            convert(tmp_path / name, tmp_path / "out")


def test_nan_is_told_with_the_tensors_name(tmp_path: Path, source: Path) -> None:
    path = str(source / "model.safetensors")
    stored: Any = mx.load(path)
    stored["transformer.h.1.mlp.c_fc.bias"][3] = float("nan")
    stored["transformer.wpe.weight"][3, 3] = 1e6
    mx.eval(stored)
    mx.save_safetensors(path, stored)
    done = convert(source, tmp_path / "plain")
    assert [w.partition(",")[0] for w in done.warnings] == ["model.h.1.mlp.c_fc.bias contains NaN"]
    done = convert(source, tmp_path / "half", dtype="float16")
    assert "model.wpe.weight contains values too large for float16" in done.warnings[0]
    assert "NaN" in done.warnings[1]
    result = CliRunner().invoke(main, ["convert", str(source), "-o", str(tmp_path / "told")])
    assert result.exit_code == 0 and "Warning: model.h.1.mlp.c_fc.bias contains NaN" in result.stderr


def test_scales_that_overflow_are_told(tmp_path: Path, source: Path) -> None:
    packed = convert(source, tmp_path / "packed", quantize=4, group_size=32).folder
    stored: Any = mx.load(str(packed / "model.safetensors"))
    stored["model.h.0.attn.c_attn.scales"][0, 0] = 1e6
    stored["model.h.1.mlp.c_fc.biases"][0, 0] = float("nan")
    mx.eval(stored)
    mx.save_safetensors(str(packed / "model.safetensors"), stored)
    told = convert(packed, tmp_path / "half", dtype="float16").warnings
    assert len(told) == 2 and "c_attn.scales contains values too large for float16" in told[0]
    assert "model.h.1.mlp.c_fc.biases contains NaN" in told[1]


def test_warnings_are_shown_though_the_run_fails_later(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(source / "model.safetensors")
    stored: Any = mx.load(path)
    stored["transformer.wte.weight"][3, 3] = float("nan")
    mx.eval(stored)
    mx.save_safetensors(path, stored)

    def fails(*_: Any) -> None:
        raise MlxgenError("no comparison")

    monkeypatch.setattr(converter, "compare", fails)
    result = CliRunner().invoke(main, ["convert", str(source), "-o", str(tmp_path / "out"), "--verify"])
    assert result.exit_code == 1
    assert result.stderr == "Warning: model.wte.weight contains NaN, so the model will not work\nError: no comparison\n"


def test_verify_keeps_the_digits_over_a_whole_vocabulary() -> None:
    numbers = np.random.default_rng(0).normal(scale=3, size=(4, 50257)).astype(np.float32)
    exact = numbers.astype(np.float64)
    loss = np.log(np.exp(exact).sum(-1))[:-1] - exact[[0, 1, 2], [5, 50000, 7]]
    wanted = np.exp(loss.mean())
    assert abs(verification._perplexity(mx.array(numbers), mx.array([0, 5, 50000, 7])) / wanted - 1) < 1e-6


def test_the_terminal_tells_what_was_done(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    options = ["-q", "8", "--group-size", "32", "--dtype", "float16", "--verify"]
    result = CliRunner().invoke(main, ["convert", str(source), "-o", str(out), *options])
    assert result.exit_code == 0 and not result.stderr
    for told in ("model folder", str(out), "36,544", "8 bits in groups of 32", "256 bytes a token", "perplexity"):
        assert told in result.stdout
    result = CliRunner().invoke(main, ["convert", str(source), "-o", str(out), "--force", "--json", *options])
    entries = json.loads(result.stdout)
    assert entries["folder"] == str(out) and entries["quantization"] == {"bits": 8, "group_size": 32}
    assert entries["bytes_after"] < entries["bytes_before"] and entries["verification"]["tokens"] == 64
    assert entries["verification"]["largest_difference"] > 0
    result = CliRunner().invoke(main, ["convert", str(source), "-o", str(out), "--force", "--quiet"])
    assert result.exit_code == 0 and not result.output


@pytest.mark.parametrize("wrong", [["-q", "5"], ["--dtype", "int8"], ["--keep-head"], ["-d", "-q", "4"], []])
def test_wrong_use_has_status_2(source: Path, wrong: list[str]) -> None:
    arguments = ["convert", str(source), *wrong] if wrong else ["convert"]
    assert CliRunner().invoke(main, arguments).exit_code == 2
