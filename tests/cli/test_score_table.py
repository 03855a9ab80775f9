"""`mlxgen score` on several files: a table, CSV or JSON, with a total."""

import csv
import io
import json
import math
import unicodedata
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from click.testing import Result

import mlxgen

TEXTS = {
    "long.txt": "the king had the horse; so the horse had the king, and there it ended",
    "a b,c.txt": "ü",
    'say "frog".txt': "the frog",
}
COLUMNS = ["file", "texts", "n_scored", "n_bytes", "total", "loss", "bits_per_byte", "perplexity"]
COLUMNS += ["questions", "acc", "acc_norm", "acc_bytes"]


@pytest.fixture
def run(run_here: Callable[..., Result]) -> Callable[..., Result]:
    for name, text in TEXTS.items():
        Path(name).write_text(text + "\n")
    return partial(run_here, "score")


@pytest.fixture
def scores(small_folder: Path) -> dict[str, mlxgen.Score]:
    model = mlxgen.load(str(small_folder))
    return {name: mlxgen.score(model, text) for name, text in TEXTS.items()}


def rows_of(result: Result) -> list[dict[str, str]]:
    assert result.exit_code == 0, result.output
    return list(csv.DictReader(io.StringIO(result.stdout)))


def test_csv_has_a_row_for_each_file_and_a_total_over_all_tokens(
    run: Callable[..., Result], scores: dict[str, mlxgen.Score]
) -> None:
    *rows, total = rows_of(run(*TEXTS, "--csv"))
    assert [row["file"] for row in rows] == list(TEXTS) and total["file"] == "total"
    assert list(total) == COLUMNS
    for row, score in zip(rows, scores.values(), strict=True):
        assert int(row["n_scored"]) == score.n_scored and float(row["perplexity"]) == score.perplexity
    every = [logprob for score in scores.values() for logprob in score.logprobs if logprob is not None]
    assert int(total["texts"]) == 3 and int(total["n_scored"]) == len(every)
    assert float(total["loss"]) == pytest.approx(-sum(every) / len(every))
    assert float(total["perplexity"]) == pytest.approx(math.exp(-sum(every) / len(every)))
    bits = -sum(every) / math.log(2) / len("".join(TEXTS.values()).encode())
    assert float(total["bits_per_byte"]) == pytest.approx(bits)
    assert total["questions"] == total["acc"] == ""


def test_columns_stay_aligned_beside_names_in_wide_characters(run: Callable[..., Result]) -> None:
    Path("王さま.txt").write_text("the king\n")
    lines = run("long.txt", "王さま.txt").stdout.splitlines()
    cells = [sum(1 + (unicodedata.east_asian_width(char) == "W") for char in line) for line in lines]
    assert len(set(cells)) == 1 and len(set(map(len, lines))) == 2


def test_the_table_shows_the_same_numbers(run: Callable[..., Result], scores: dict[str, mlxgen.Score]) -> None:
    result = run(*TEXTS)
    head, *lines, total = result.stdout.splitlines()
    assert head.split() == ["file", "tokens", "nats/token", "bits/byte", "perplexity"]
    for line, (name, score) in zip(lines, scores.items(), strict=True):
        numbers = [str(score.n_scored), *(f"{n:.4f}" for n in (score.loss, score.bits_per_byte, score.perplexity))]
        assert line.startswith(name) and line.removeprefix(name).split() == numbers
    expected = mlxgen.sum_scores(scores.values())
    numbers = (expected.loss, expected.bits_per_byte, expected.perplexity)
    assert total.split() == ["total", str(expected.n_scored), *(f"{n:.4f}" for n in numbers)]
    assert len({len(line) for line in (head, *lines, total)}) == 1
    assert run("long.txt", "--table").stdout.count("\n") == 3


def test_json_has_the_columns_of_csv(run: Callable[..., Result]) -> None:
    found = json.loads(run(*TEXTS, "--json").stdout)
    *rows, total = rows_of(run(*TEXTS, "--csv"))
    assert list(found["files"][0]) == COLUMNS and list(found["total"]) == COLUMNS[1:]
    for entry, row in zip([*found["files"], {"file": "total"} | found["total"]], [*rows, total], strict=True):
        assert {name: "" if value is None else str(value) for name, value in entry.items()} == row


def test_standard_input_is_one_of_the_files(run: Callable[..., Result]) -> None:
    *rows, _ = rows_of(run("long.txt", "-", "--csv", stdin="the frog\n"))
    assert [row["file"] for row in rows] == ["long.txt", "-"]
    assert rows[1]["total"] == rows_of(run('say "frog".txt', "--csv"))[0]["total"]
    twice = run("-", "-", stdin="the frog\n")
    assert twice.exit_code == 2 and "can be read only once" in twice.stderr


def test_questions_give_their_accuracy(run: Callable[..., Result], small_folder: Path) -> None:
    model = mlxgen.load(str(small_folder))
    choices = [" king", " frog", "xyz the end of it"]
    asked = [mlxgen.rank_choices(model, context, choices, answer=1) for context in ("the", "so it was", "far away")]
    lines = [
        {"prompt": "the", "choices": choices, "answer": 1},
        {"context": "so it was", "choices": choices, "answer": " frog"},
        {"context": "far away", "choices": ["king", "frog", "xyz the end of it"], "answer": 1, "delimiter": " "},
        {"text": "the king"},
    ]
    asked[2] = mlxgen.rank_choices(model, "far away", lines[2]["choices"], answer=1, delimiter=" ")  # type: ignore[arg-type]
    Path("q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    Path("one.jsonl").write_text(json.dumps(lines[0]) + "\n")
    expected = mlxgen.accuracy(asked)
    assert len({expected.acc, expected.acc_norm, 0.0, 1.0}) > 2  # some are right and some are not
    first, second, total = rows_of(run("q.jsonl", "one.jsonl", "--csv"))
    assert (first["questions"], second["questions"], total["questions"]) == ("3", "1", "4")
    assert (first["texts"], second["texts"], second["loss"]) == ("1", "", "")
    for name in ("acc", "acc_norm", "acc_bytes"):
        assert float(first[name]) == pytest.approx(getattr(expected, name))
        assert float(total[name]) == pytest.approx((3 * float(first[name]) + float(second[name])) / 4)
    assert json.loads(run("q.jsonl", "--json").stdout)["total"]["acc"] == expected.acc
    assert run("one.jsonl", "--table").stdout.split()[:5] == ["file", "questions", "acc", "acc_norm", "acc_bytes"]
    by_line = [json.loads(line) for line in run("q.jsonl").stdout.splitlines()]
    assert [entry["acc_norm"] for entry in by_line[:3]] == [question.acc_norm for question in asked]
    assert [entry["answer"] for entry in by_line[:3]] == [1, 1, 1]


def test_unusable_files_are_refused_before_anything_is_scored(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxgen.cli.score_table.open_model", lambda given: pytest.fail("the model was opened"))
    Path("latin.txt").write_bytes(b"caf\xe9")
    Path("empty.txt").write_text("\n")
    Path("empty.jsonl").write_text("\n")
    Path("broken.jsonl").write_text('"the king"\n{"text": \n')
    Path("answer.jsonl").write_text('{"context": "a", "choices": ["b", "c"], "answer": 2}\n')
    Path("unknown.jsonl").write_text('{"context": "a", "choices": ["b", "c"]}\n')
    Path("both.jsonl").write_text('{"context": "a", "prompt": "a", "choices": ["b", "c"], "answer": 0}\n')
    Path("text.jsonl").write_text('{"text": "a", "answer": 0}\n')
    for name, message, status in (
        ("missing.txt", "missing.txt: No such file", 1),
        (".", ".: Is a directory", 1),
        ("latin.txt", "latin.txt is not UTF-8 text", 2),
        ("empty.txt", "empty.txt is empty", 2),
        ("empty.jsonl", "empty.jsonl is empty", 2),
        ("broken.jsonl", "broken.jsonl, line 2: the line is not JSON", 2),
        ("answer.jsonl", "answer.jsonl, line 1: answer must be the number of a choice, from 0 to 1", 2),
        ("unknown.jsonl", "unknown.jsonl, line 1 has choices and no answer", 2),
        ("both.jsonl", "both.jsonl, line 1: context and prompt are two names", 2),
        ("text.jsonl", "text.jsonl, line 1: answer belongs to choices", 2),
    ):
        result = run("long.txt", name)
        assert result.exit_code == status and message in result.stderr, result.output
        assert result.stderr.splitlines()[-1].startswith("Error: ") and not result.stdout


def test_a_text_that_cannot_be_scored_is_named(run: Callable[..., Result]) -> None:
    result = run("long.txt", "a b,c.txt", "--no-bos", "--context", "")
    assert result.exit_code == 0  # two tokens
    Path("one.txt").write_text("a")
    result = run("long.txt", "one.txt", "--no-bos")
    assert result.exit_code == 2 and "one.txt: a single token cannot be scored" in result.stderr


def test_a_stride_that_the_model_has_not_is_refused_before_the_first_row(run: Callable[..., Result]) -> None:
    result = run("long.txt", "--csv", "--stride", "33")
    assert result.exit_code == 2 and not result.stdout
    assert "Error: stride must be a whole number from 1 to the model's 32 positions" in result.stderr


def test_options_for_other_outputs_are_refused(run: Callable[..., Result]) -> None:
    for arguments, message in (
        (["long.txt", "long.txt", "-o", "out"], "-o and --overwrite are for the results of one JSONL file"),
        (["long.txt", "--csv", "--per-token"], "--per-token is for one text"),
        (["long.txt", "--csv", "--json"], "--json, --csv and --table are different outputs"),
        (["long.txt", "--delimiter", " "], "--delimiter is for questions with choices"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2 and message in result.stderr
