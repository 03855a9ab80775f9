"""--adapter on every command that runs or describes a model."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import mlxgen
from mlxgen.cli.main import main

from ..support.adapters import write_mlx_lm, write_peft
from ..support.models import tiny_gpt2

TINY = tiny_gpt2(n_ctx=64, layer_norm_epsilon=1e-5)  # entries that mlx-lm needs


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(TINY.write(tmp_path_factory.mktemp("models") / "model", "model.", chat_template="{{ messages }}"))


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory, model: str) -> str:
    return str(write_mlx_lm(tmp_path_factory.mktemp("adapters") / "tales", Path(model)))


def run(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main, list(arguments), input=given)


def test_generate_continues_with_the_adapter(model: str, adapter: str) -> None:
    options = ("-m", model, "--greedy", "-n", "12", "--ignore-eos", "--json")
    plain, adapted = run("generate", "Far", *options), run("generate", "Far", *options, "--adapter", adapter)
    answer = mlxgen.generate(mlxgen.load(model, adapter=adapter), "Far", max_tokens=12, temperature=0, ignore_eos=True)
    found = json.loads(adapted.stdout)
    assert found["tokens"] == answer.tokens != json.loads(plain.stdout)["tokens"]
    assert found["model"] == f"{model} with {adapter}"


def test_score_batch_trace_and_chat_take_it(tmp_path: Path, model: str, adapter: str) -> None:
    options = ("-m", model, "--adapter", adapter)
    expected = mlxgen.score(mlxgen.load(model, adapter=adapter), "Far away").total
    assert json.loads(run("score", *options, "--json", given="Far away").stdout)["total"] == pytest.approx(expected)
    answer = run("batch", "-", *options, "--greedy", "-n", "5", given="Far\n")
    tokens = json.loads(answer.stdout)["tokens"]
    traced = json.loads(run("trace", "Far", *options, "--greedy", "-n", "5", "--json").stdout)
    assert [step["id"] for step in traced["tokens"]] == tokens and traced["model"] == f"{model} with {adapter}"
    talk = run("chat", *options, "--template", "story", "--greedy", "-n", "5", "--json", given="Far\n")
    assert talk.exit_code == 0 and json.loads(talk.stdout)["tokens"] == tokens
    out = tmp_path / "out.jsonl"
    (tmp_path / "in.txt").write_text("Far\n")
    for extra in ((), ("--adapter", adapter)):  # what was answered without it is answered again
        command = ("batch", str(tmp_path / "in.txt"), "-o", str(out), "-m", model, "--greedy", "-n", "5")
        assert run(*command, *extra).exit_code == 0
    assert json.loads(out.read_text())["tokens"] == tokens


def test_info_says_what_it_changes(model: str, adapter: str) -> None:
    found = run("info", model, "--adapter", adapter)
    assert f"adapter     {adapter} (LoRA of mlx-lm, changes 8 parameters)" in found.stdout
    entries = json.loads(run("info", model, "--adapter", adapter, "--json").stdout)
    assert entries["adapter"] == {"name": adapter, "kind": "LoRA of mlx-lm", "base": model, "parameters": 8}
    assert json.loads(run("info", model, "--json").stdout)["adapter"] is None


def test_convert_writes_the_merged_model(tmp_path: Path, model: str, adapter: str) -> None:
    out = str(tmp_path / "out")
    found = run("convert", model, "--adapter", adapter, "-o", out, "--verify")
    assert found.exit_code == 0 and f"adapter     {adapter} (LoRA of mlx-lm)" in found.stdout
    merged, loaded = mlxgen.load(out), mlxgen.load(model, adapter=adapter)
    a, b = (mlxgen.score(one, "Far away").logprobs[1:] for one in (merged, loaded))
    np.testing.assert_allclose(a, b, atol=1e-4)
    entries = json.loads(run("convert", model, "--adapter", adapter, "-o", out, "--force", "--json").stdout)
    assert entries["adapter"] == f"{adapter} (LoRA of mlx-lm)"


def test_a_draft_model_has_no_adapter(model: str, adapter: str) -> None:
    options = ("-m", model, "--adapter", adapter, "--greedy", "-n", "8", "--json", "--ignore-eos")
    plain, drafted = run("generate", "Far", *options), run("generate", "Far", *options, "--draft", model)
    assert json.loads(drafted.stdout)["tokens"] == json.loads(plain.stdout)["tokens"]


def test_a_bad_adapter_is_one_line(tmp_path: Path, model: str) -> None:
    other = str(write_peft(tmp_path / "other", tiny_gpt2(n_layer=3)))
    for name in (other, model, str(tmp_path / "nothing"), ""):
        for command in (
            ("generate", "Far", "-m", model),
            ("convert", model, "-o", str(tmp_path / "out")),
            ("info", model),
        ):
            found = run(*command, "--adapter", name)
            assert found.exit_code == 1 and found.stderr.startswith("Error: ") and found.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_adapter_in_the_models_place_gives_commands_that_work(tmp_path: Path, model: str) -> None:
    adapter = write_mlx_lm(tmp_path / "tales", Path(model))
    found = run("generate", "Far", "-m", str(adapter))
    assert found.exit_code == 1
    for command in found.stderr.split("`")[1::2]:
        words = shlex.split(command)
        extra = ["-n", "2"] if words[1] == "generate" else ["-o", str(tmp_path / "out")]
        assert run(*words[1:], *extra).exit_code == 0, command


def test_trace_compares_the_adapter_with_the_model_without_it(model: str, adapter: str) -> None:
    options = ("-m", model, "--adapter", adapter, "--compare", model, "-n", "4", "--greedy", "--ignore-eos", "--json")
    record = json.loads(run("trace", "Far", *options).stdout)
    for name, found in (("first", mlxgen.load(model, adapter=adapter)), ("second", mlxgen.load(model))):
        expected = mlxgen.generate(found, "Far", max_tokens=4, temperature=0, ignore_eos=True)
        assert [token["id"] for token in record[name]["tokens"]] == expected.tokens
        assert record[name]["model"] == found.label
