"""`mlxgen trace`: the terminal and the page tell what the record holds."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import mlxgen
from mlxgen.cli.main import main
from mlxgen.cli.output import visible

from ..support.models import tiny_gpt2

PROMPT = "Far away the king and the frog"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gpt2().write(tmp_path_factory.mktemp("m") / "m")


def run(folder: Path, *args: str) -> Result:
    return CliRunner().invoke(main, ["trace", *args, "-m", str(folder), "--seed", "5", "--ignore-eos"])


def test_the_terminal_tells_the_five_stages_of_each_step_in_80_columns(folder: Path) -> None:
    result = run(folder, PROMPT, "-n", "12", "--lens", "--attention", "1.2", "--max-kv-size", "12", "-p", "0.9")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "\x1b" not in result.stdout
    for stage in ("1 Context", "2 Transformer", "3 Logits", "4 Sample", "5 Append"):
        assert sum(line.startswith(stage) for line in lines) == 12
    assert result.stdout.count("cumulative sum 0.9") == 12
    assert "dropped 0–" in result.stdout


def test_one_token_is_not_several(folder: Path) -> None:
    told = run(folder, "x", "-n", "1", "-k", "1", "--suppress-tokens", "5").stdout
    assert all(
        text in told
        for text in ("1 token: 1 prompt", "1 token through", "bans 1 token,", "keeps 1 token,", "the 1 left is")
    )
    assert not re.search(r"\b1 tokens", told)


def test_the_terminal_tells_what_the_page_tells(folder: Path) -> None:
    args = (PROMPT, "-n", "3", "--max-kv-size", "12", "--keep", "2", "-t", "1.3", "-k", "9", "-p", "0.9")
    record = json.loads(run(folder, *args, "--json").stdout)
    *steps, _ = run(folder, *args, "--candidates", "5").stdout.split("\nStep ")
    told = [re.split(r"^\d [A-Z]\w+ ", text, flags=re.M)[1:] for text in steps]
    assert len(told) == 2
    tokens = [*record["prompt_tokens"], *record["tokens"]]
    for step, stages in zip(record["steps"], told, strict=False):
        length = step["context_length"]
        held = {at for a, b in step["cache"]["held"] for at in range(a, b)}
        marks = ["×" if at not in held else "*" if at < 2 else "" for at in range(length)]
        expected = [
            f"{visible(token['text'])}/{token['id']}{mark}" for token, mark in zip(tokens[:length], marks, strict=True)
        ]
        first = max(0, length - 24)
        listed = [*expected[: min(2, first)], *(["…"] if first > 2 else []), *expected[first:]]
        words = [word for word in stages[0].split() if word != "|"]
        start = words.index(listed[0])
        assert words[start : start + len(listed)] == listed
        assert all(re.search(r"\d (ms|s)\b", stage) for stage in stages)
        left = math.prod(rule["kept_probability"] for rule in step["rules"])
        assert f"left are divided by their sum, {left:.4f}" in stages[3]
        for one in step["candidates"][:5]:
            cut = "cut " + (one["cut_by"] or "").replace("_", "-")
            shares = [one["probability"], one["tempered"], one["rule_probability"]]
            words = [f"{one['logit']:.2f}", *(f"{100 * share:.2f}%" for share in shares)]
            assert " ".join([*words[:3], cut if one["cut_by"] else words[3]]) in " ".join(stages[3].split())


def test_the_terminal_obeys_nothing_that_the_text_says(folder: Path) -> None:
    result = run(folder, "a\x1b[31mred\x07 [bold]b[/bold]\u202e", "-n", "2")
    assert result.exit_code == 0, result.output
    assert not set("\x1b\x07\u202e") & set(result.stdout)
    assert "[bold]b[/bold]" in result.stdout


def test_json_on_the_terminal_is_the_record(folder: Path) -> None:
    result = run(folder, PROMPT, "-n", "6", "--json")
    record = json.loads(result.stdout)
    listed = set(re.findall(r"\w+", run(folder, "--help").stdout))
    assert {*record, *record["steps"][0], *record["tokens"][0]} <= listed
    expected = mlxgen.generate(mlxgen.load(str(folder)), PROMPT, max_tokens=6, seed=5, ignore_eos=True)
    assert [token["id"] for token in record["tokens"]] == expected.tokens
    assert record["text"] == expected.text


def test_a_page_is_written_and_nothing_printed(folder: Path, tmp_path: Path) -> None:
    page, other = tmp_path / "page.html", tmp_path / "page.html.part"
    other.write_text("the user's own")
    result = run(folder, PROMPT, "-n", "6", "--html", str(page))
    assert (result.exit_code, result.stdout) == (0, "")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert other.read_text() == "the user's own"
    assert sorted(tmp_path.iterdir()) == [page, other]


@pytest.mark.parametrize(
    ("args", "said"),
    [(["--open"], "--html FILE"), (["--attention", "x"], "such as 0.3"), (["--attention", "9.9"], "no head 9")],
)
def test_wrong_use_is_a_line_and_status_2(folder: Path, args: list[str], said: str) -> None:
    result = run(folder, PROMPT, *args)
    assert result.exit_code == 2 and said in result.stderr


def test_a_page_that_cannot_be_written_is_told(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "nowhere" / "page.html"
    for model in (folder, tmp_path / "no-model"):  # and before the model is opened
        result = run(model, PROMPT, "-n", "1", "--html", str(page))
        assert result.exit_code == 1 and f"{page}: there is no folder" in result.stderr


@pytest.mark.parametrize("columns", [40, 50, 60, 70, 80, 120])
def test_a_trace_fits_terminals_of_every_width_with_whole_words_and_numbers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = run(folder, PROMPT, "-n", "3", "-p", "0.9")
    lines = result.stdout.splitlines()
    assert all(len(line) <= columns for line in lines)
    assert "rul…" not in result.stdout and "… …" not in result.stdout
    rows = [line for line in lines if re.match(r"  > ", line)]
    assert len(rows) == 3 and all(len(re.findall(r"\d+\.\d\d%", row)) >= 2 for row in rows)
    words = {word for line in lines for word in line.split()}
    assert {"generated;", "positions,", "cumulative", "divides"} <= words


def test_columns_0_is_no_width(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    usual = run(folder, PROMPT, "-n", "1").stdout
    monkeypatch.setenv("COLUMNS", "0")
    time = re.compile(r"[\d.]+ m?s")
    assert time.sub("", run(folder, PROMPT, "-n", "1").stdout).split() == time.sub("", usual).split() != []


def test_bans_and_cuts_are_told_where_they_change_something(folder: Path) -> None:
    options = (
        "-n 6 --no-repeat-ngram 1 --suppress-tokens 97,98 -k off --typical-p 0.7 --epsilon-cutoff 0.001"
        " --eta-cutoff 0.01 --candidates 60"
    )
    args = (PROMPT, *options.split())
    record = json.loads(run(folder, *args, "--json").stdout)
    assert record["options"]["no_repeat_ngram"] == 1 and record["options"]["suppress_tokens"] == [97, 98]
    text = run(folder, *args).stdout
    assert all(len(line) <= 80 for line in text.splitlines())
    for step, told in zip(record["steps"], text.split("4 Sample ")[1:], strict=True):
        rules = {rule["name"]: rule for rule in step["rules"]}
        assert list(rules) == [
            "no_repeat_ngram", "suppress_tokens", "temperature", "typical_p", "epsilon_cutoff", "eta_cutoff",
        ]  # fmt: skip
        ids = [token["id"] for token in [*record["prompt_tokens"], *record["tokens"]]][: step["context_length"]]
        assert rules["no_repeat_ngram"]["kept"] == record["vocab_size"] - len(set(ids))
        assert f"no-repeat-ngram 1 bans {len(set(ids))} tokens, " in told
        gone = len({97, 98} - set(ids))
        assert f"suppress-tokens bans {gone} token{'s' * (gone != 1)}, " in told
        assert f"typical-p 0.7 keeps {rules['typical_p']['kept']} token" in told
        cut = {one["cut_by"] for one in step["candidates"][:60]}
        assert ("no_repeat_ngram" in cut) == ("cut ngram" in told) and ("typical_p" in cut) == ("cut typ-p" in told)
        banned = [one["token"] for one in step["candidates"] if one["cut_by"] == "no_repeat_ngram"]
        assert banned and set(banned) <= set(ids)
