"""`mlxgen trace --compare` and `--compare-seed`: two runs, side by side, and where they part."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import mlxgen
from mlxgen.cli.main import main
from mlxgen.cli.output import escaped, visible

from ..support.models import BYTES, letter_tokenizer, tiny_gpt2

PROMPT = "Far away the king and the frog"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Another model with the same tokens."""
    return str(tiny_gpt2(9).write(tmp_path_factory.mktemp("models") / "other"))


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with other tokens."""
    return str(tiny_gpt2(3, letter_tokenizer(BYTES[::-1])).write(tmp_path_factory.mktemp("models") / "letters"))


def run(folder: str, *args: str) -> Result:
    options = () if "--seed" in args else ("--seed", "5")
    return CliRunner().invoke(main, ["trace", PROMPT, "-m", folder, *options, "--ignore-eos", *args])


def test_json_has_both_runs_and_where_they_part(folder: str, model: mlxgen.Model) -> None:
    record = json.loads(run(folder, "-n", "6", "--compare-seed", "6", "-k", "3", "--json").stdout)
    expected = [mlxgen.generate(model, PROMPT, max_tokens=6, seed=s, top_k=3, ignore_eos=True).tokens for s in (5, 6)]
    assert [[token["id"] for token in record[name]["tokens"]] for name in ("first", "second")] == expected
    at = next(at for at in range(6) if expected[0][at] != expected[1][at])
    text = model.tokenizer.decode(expected[0][:at])
    assert record["parting"] == {"by": "token", "first": at, "second": at, "text": text}
    assert set(record) | set(record["parting"]) <= set(re.findall(r"\w+", run(folder, "--help").stdout))


def test_another_model_is_traced_with_the_same_seed_and_rules(folder: str, other: str) -> None:
    record = json.loads(run(folder, "-n", "4", "--compare", other, "-t", "0.6", "--json").stdout)
    expected = mlxgen.generate(mlxgen.load(other), PROMPT, max_tokens=4, seed=5, temperature=0.6, ignore_eos=True)
    assert [token["id"] for token in record["second"]["tokens"]] == expected.tokens
    assert record["second"]["model"] == other and record["first"]["seed"] == record["second"]["seed"] == 5
    both = json.loads(run(folder, "-n", "4", "--compare", other, "--compare-seed", "8", "--json").stdout)
    assert (both["second"]["model"], both["second"]["seed"]) == (other, 8)


def test_a_drawn_seed_is_that_of_both_models(folder: str, other: str) -> None:
    result = CliRunner().invoke(main, ["trace", PROMPT, "-m", folder, "-n", "2", "--compare", other, "--json"])
    record = json.loads(result.stdout)
    assert record["first"]["seed"] == record["second"]["seed"]


@pytest.mark.parametrize("columns", [40, 60, 120])
def test_the_terminal_has_both_runs_and_marks_where_they_part(
    folder: str, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    args = ("-n", "8", "--compare-seed", "6", "-k", "3")
    record = json.loads(run(folder, *args, "--json").stdout)
    shown = run(folder, *args, "--candidates", "3").stdout
    assert all(len(line) <= columns for line in shown.splitlines())
    rows = [line.split() for line in shown.splitlines() if re.match(r" +\d+ ", line)]
    assert len(rows) == 8
    at = record["parting"]["first"]
    for index, row in enumerate(rows):
        assert row.count(">") == (2 if index == at else 0)
        cells = [cell for cell in row[1:] if cell != ">"]
        per_run = len(cells) // 2
        for name, own in (("first", cells[:per_run]), ("second", cells[per_run:])):
            chosen = record[name]["steps"][index]["chosen"]
            assert own[1] == f"{100 * chosen['probability']:.2f}%"
            assert own[0].rstrip("…") in visible(chosen["text"])
    names = [visible(record[name]["steps"][at]["chosen"]["text"]) for name in ("first", "second")]
    words = " ".join(shown.split())
    assert f"They part at step {at + 1}: A chose {names[0]}, B chose {names[1]}." in words
    for name in ("first", "second"):
        assert "".join(escaped(record[name]["text"]).split()) in "".join(shown.split())


def test_the_candidates_of_the_step_have_the_probabilities_of_both(folder: str, other: str) -> None:
    args = ("-n", "3", "--compare", other, "-k", "5")
    record = json.loads(run(folder, *args, "--json").stdout)
    at = record["parting"]["first"]
    table = run(folder, *args, "--candidates", "3").stdout.split("They part at")[1].split("─ Text")[0]
    steps = [record[name]["steps"][at] for name in ("first", "second")]
    for step in steps:
        for one in step["candidates"][:3]:
            row = next(line for line in table.splitlines() if f" {visible(one['text'])} " in f" {line} ")
            assert f"{100 * one['probability']:.2f}%" in row
    marked = [line for line in table.splitlines() if re.match(r"(A|B) ", line)]
    assert len(marked) == 2


def test_models_with_other_tokens_are_compared_by_text(folder: str, letters: str) -> None:
    shown = run(folder, "-n", "4", "--compare", letters).stdout
    assert "Their texts part" in " ".join(shown.split())
    assert json.loads(run(folder, "-n", "4", "--compare", letters, "--json").stdout)["parting"]["by"] == "text"


def test_the_same_run_twice_does_not_part(folder: str) -> None:
    shown = run(folder, "-n", "3", "--compare", folder).stdout
    assert "They do not part" in shown and "> " not in shown
    assert json.loads(run(folder, "-n", "3", "--compare", folder, "--json").stdout)["parting"] is None


def test_a_page_of_both_is_written(folder: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = run(folder, "-n", "3", "--compare-seed", "6", "--html", str(page))
    assert (result.exit_code, result.stdout) == (0, "")
    assert len(json.loads(page.read_text().split('id="trace">')[1].split("</script>")[0])["runs"]) == 2


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--compare-seed", "6", "--greedy"], "the same with every seed"),
        (["--compare-seed", "6", "--pause"], "--pause"),
        (["--compare-seed", "x"], "--compare-seed"),
        (["--compare", "MODEL", "--attention", "0.9", "--json"], "no head 9"),
        (["--compare", "MODEL", "--lens"], "add --html FILE"),
    ],
)
def test_wrong_use_is_status_2(folder: str, other: str, args: list[str], said: str) -> None:
    result = run(folder, *(other if word == "MODEL" else word for word in args))
    assert result.exit_code == 2 and said in result.stderr and not result.stdout


def test_a_second_model_that_is_none_is_told_before_the_first_runs(folder: str, tmp_path: Path) -> None:
    result = run(folder, "--compare", str(tmp_path / "nothing"))
    assert result.exit_code == 1 and "nothing: no such folder" in result.stderr and not result.stdout


def test_ids_that_stand_for_other_texts_cannot_be_compared(folder: str, letters: str) -> None:
    args = ["trace", "--ids", "5 6", "-m", folder, "-n", "2", "--compare", letters]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 2 and "different prompts" in result.stderr


def test_all_heads_are_a_line_per_layer(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = str(tiny_gpt2(n_layer=3, n_head=8).write(tmp_path_factory.mktemp("models") / "heads"))
    args = ("-n", "2", "--attention", "all")
    steps = json.loads(run(folder, *args, "--json").stdout)["steps"]
    shown = run(folder, *args).stdout
    for layer in range(3):
        lines = re.findall(rf"layer {layer}: most attention to ((?:.|\n)*?)(?=\n\S|\n +(?:layer|head))", shown)
        assert len(lines) == 2
        for step, line in zip(steps, lines, strict=True):
            heads = [one["weights"] for one in step["attention"] if one["layer"] == layer]
            most = [weights.index(max(weights)) for weights in heads]
            largest = max(most.count(at) for at in most)
            assert f"({largest} head" in " ".join(line.split())
