"""What a conversion reports: warnings, the comparison of --verify, the summary and its JSON."""

from __future__ import annotations

import json
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

from ...support.models import tiny_gpt2


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tiny_gpt2().write(tmp_path / "source")


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
    for told in ("model folder", str(out), "36,544", "8 bits in groups of 32", "256 bytes per token", "perplexity"):
        assert told in result.stdout
    result = CliRunner().invoke(main, ["convert", str(source), "-o", str(out), "--force", "--json", *options])
    entries = json.loads(result.stdout)
    assert entries["folder"] == str(out) and entries["quantization"] == {"bits": 8, "group_size": 32}
    assert entries["bytes_after"] < entries["bytes_before"] and entries["verification"]["tokens"] == 64
    assert entries["verification"]["largest_difference"] > 0
    result = CliRunner().invoke(main, ["convert", str(source), "-o", str(out), "--force", "--quiet"])
    assert result.exit_code == 0 and not result.output
