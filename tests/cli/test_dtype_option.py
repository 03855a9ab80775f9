"""--dtype of every command that runs a model: the type that its blocks compute in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mlx.utils import tree_flatten

import mlxgen
from mlxgen.cli.bench.bandwidth import bytes_per_step
from mlxgen.dtypes import name_of

from .running import run

COMMANDS = {
    "generate": ("generate", "far", "-n", "2"),
    "chat": ("chat", "-n", "2"),
    "batch": ("batch", "{lines}", "-n", "2"),
    "score": ("score", "{text}"),
    "trace": ("trace", "far", "-n", "2"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_model_that_a_command_runs_computes_in_it(
    name: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, text = tmp_path / "lines.jsonl", tmp_path / "text.txt"
    lines.write_text('"far"\n')
    text.write_text("far away")
    types, load = [], mlxgen.load

    def loading(*args: str, **options: str | None) -> mlxgen.Model:
        model = load(*args, **options)  # type: ignore[arg-type]
        types.append(name_of(model.decoder.compute_dtype))
        return model

    monkeypatch.setattr(mlxgen, "load", loading)
    arguments = [part.format(lines=lines, text=text) for part in COMMANDS[name]]
    for dtype in ("float16", "float32"):
        done = run(*arguments, "-m", folder, "--dtype", dtype, stdin="far\n")
        assert done.exit_code == 0, done.stderr
    assert types == ["float16", "float32"]


def test_info_counts_the_bytes_of_that_type_and_of_a_float32_head(folder: str) -> None:
    wide, narrow = (
        json.loads(run("info", folder, "--json", "--dtype", name).stdout) for name in ("float32", "float16")
    )
    head = wide["vocab_size"] * wide["n_embd"]
    assert narrow["compute_dtype"] == "float16"
    assert narrow["cache_bytes"] == wide["cache_bytes"] / 2
    assert narrow["weight_bytes"] == (wide["weight_bytes"] - 4 * head) / 2 + 4 * head
    model = mlxgen.load(folder, dtype="float16")
    assert sum(array.nbytes for _, array in tree_flatten(model.decoder.parameters())) == narrow["weight_bytes"]


def test_bench_measures_it_and_counts_its_bytes(folder: str) -> None:
    wide, narrow = (bytes_per_step(Path(folder), 10, dtype=name) for name in ("float32", "float16"))
    config = mlxgen.load(folder).config
    assert narrow - wide / 2 == 2 * config.vocab_size * config.n_embd
    done = run("bench", "-m", folder, "--dtype", "float16", "--runs", "1", "-n", "2", "--prompt-tokens", "4", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["decode_tps"] > 0
    both = run("bench", "-m", folder, "--dtype", "float16", "--against", "mlx-lm")
    assert both.exit_code == 2 and "--dtype is for mlxgen alone" in both.stderr


def test_an_unknown_type_is_wrong_use(folder: str) -> None:
    done = run("generate", "far", "-m", folder, "--dtype", "int8")
    assert done.exit_code == 2 and "'int8' is not one of 'float32', 'float16', 'bfloat16'" in done.stderr
