"""`mlxgen score` in the terminal, and what lm-evaluation-harness does with a folder that mlxgen converted."""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from click.testing import Result

import mlxgen

TEXT = "the king had the horse; so the horse had the king, and there it ended.\n"


@pytest.fixture
def run(run_here: Callable[..., Result]) -> Callable[..., Result]:
    return partial(run_here, "score")


def test_json_holds_what_python_gives(run: Callable[..., Result], small_folder: Path) -> None:
    Path("text.txt").write_text(TEXT)
    result = run("text.txt", "--json", "--stride", "5", "--context", "once ")
    assert result.exit_code == 0, result.output
    entry = json.loads(result.stdout)
    text = TEXT.removesuffix("\n")
    expected = mlxgen.score(mlxgen.load(str(small_folder)), text, stride=5, context="once ")
    assert entry["tokens"] == expected.tokens and entry["ranks"] == expected.ranks
    assert entry["logprobs"] == pytest.approx(expected.logprobs)
    for name in ("total", "loss", "perplexity", "bits_per_byte", "n_bytes", "n_scored"):
        assert entry[name] == pytest.approx(getattr(expected, name))


def test_text_output_and_each_token(run: Callable[..., Result], small_folder: Path) -> None:
    expected = mlxgen.score(mlxgen.load(str(small_folder)), "the king")
    result = run(stdin="the king\n")
    assert dict(line.split(None, 1) for line in result.stdout.splitlines() if "bits" not in line) == {
        "tokens": str(expected.n_scored),
        "log-likelihood": f"{expected.total:.4f} nats",
        "cross-entropy": f"{expected.loss:.4f} nats per token",
        "perplexity": f"{expected.perplexity:.4f}",
    }
    lines = run("--per-token", "--no-bos", stdin="the king\n").stdout.splitlines()[: len(expected.tokens)]
    assert lines[0].split()[:2] == ["-", "-"]
    assert all(float(line.split()[0]) < 0 and int(line.split()[1]) >= 1 for line in lines[1:])


def test_many_texts_and_choices(run: Callable[..., Result], small_folder: Path) -> None:
    choices = [" king", " horse", "xyz the end of it"]
    lines = [
        "the king",
        {"id": "q", "context": "so it was the", "choices": choices, "metadata": 1},
        {"text": ""},
        {"text": "a", "choices": ["b"]},
        {"choices": []},
        {"text": "ab", "context": 5},
        {"txt": "a"},
    ]
    Path("in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run("in.jsonl", "-o", "out.jsonl")
    assert result.exit_code == 1 and "5 of 7 lines failed" in result.stderr
    found = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [entry["id"] for entry in found] == [1, "q", 3, 4, 5, 6, 7]
    assert all("error" in entry for entry in found[2:])
    model = mlxgen.load(str(small_folder))
    assert found[0]["total"] == mlxgen.score(model, "the king").total
    totals = [mlxgen.score(model, choice, context="so it was the").total for choice in choices]
    assert [entry["total"] for entry in found[1]["choices"]] == pytest.approx(totals)
    assert found[1]["ranking"] == sorted(range(3), key=lambda at: -totals[at])
    per_byte = [total / len(choice) for total, choice in zip(totals, choices, strict=True)]
    assert found[1]["ranking_per_byte"] == sorted(range(3), key=lambda at: -per_byte[at])
    assert found[1]["metadata"] == 1


def test_a_rerun_scores_only_what_is_missing(run: Callable[..., Result]) -> None:
    Path("in.jsonl").write_text("".join(f'"the king {at}"\n' for at in range(5)))
    run("in.jsonl", "-o", "out.jsonl")
    whole = Path("out.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    Path("out.jsonl").write_bytes(lines[3] + lines[0] + lines[4][:9])
    assert run("in.jsonl", "-o", "out.jsonl").exit_code == 0
    assert Path("out.jsonl").read_bytes() == whole


def test_infinite_numbers_are_null(small_folder: Path) -> None:
    from mlxgen.cli.jsonl.score_lines import score_entries

    entries = score_entries(mlxgen.Score("", [0], [-800.0], [1], 0), per_token=False)
    assert entries["perplexity"] is None and entries["bits_per_byte"] is None


def test_wrong_use_is_told(run: Callable[..., Result]) -> None:
    Path("text.txt").write_text("the king")
    Path("latin.txt").write_bytes(b"caf\xe9")
    for arguments, message in (
        (["text.txt", "-o", "x"], "-o and --overwrite are for many texts"),
        (["text.txt", "--stride", "33"], "stride must be a whole number from 1 to the model's 32 positions"),
        (["latin.txt"], "is not UTF-8"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2 and message in result.stderr


def test_a_converted_folder_scores_the_same_when_mlx_lm_opens_it_for_the_harness(
    small_folder: Path, tmp_path: Path
) -> None:
    """mlx_lm.evaluate loads a folder with mlx_lm.load, tokenizes, and looks log-probabilities up: the same, by hand."""
    import mlx.core as mx
    import mlx_lm

    from mlxgen.weights.conversion.converter import convert

    converted = tmp_path / "converted"
    convert(str(small_folder), converted)
    decoder, tokenizer = mlx_lm.load(str(converted), tokenizer_config={"trust_remote_code": None})
    context, text = tokenizer.encode("the king"), tokenizer.encode(" had the horse")
    logits = decoder(mx.array([context + text])).astype(mx.float32)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    theirs = [logprobs[0, len(context) - 1 + at, token].item() for at, token in enumerate(text)]
    ours = mlxgen.score(mlxgen.load(str(converted)), " had the horse", context="the king")
    assert ours.tokens == text
    assert ours.logprobs == pytest.approx(theirs, abs=1e-4)
    assert ours.perplexity == pytest.approx(math.exp(-sum(theirs) / len(theirs)), rel=1e-4)


def test_the_last_line_break_of_a_file_counts_no_more_than_that_of_standard_input(run: Callable[..., Result]) -> None:
    Path("cat.txt").write_text("the king\n")
    Path("bare.txt").write_text("the king")
    assert run("cat.txt").stdout == run(stdin="the king\n").stdout == run("bare.txt").stdout
    Path("two.txt").write_text("the king\n\n")
    assert run("two.txt").stdout != run("bare.txt").stdout


def test_json_lines_are_recognised_without_their_name(run: Callable[..., Result]) -> None:
    lines = '{"text": "the king"}\n{"choices": ["a", "b"], "id": "q"}\n'
    Path("q.jsonl").write_text(lines)
    Path("q.data").write_text(lines)
    named = run("q.jsonl").stdout
    assert named.count("\n") == 2 and run(stdin=lines).stdout == run("q.data").stdout == named
    for prose in ('{"king": 1}\n', '"The king," he said.\n', "{ text: the king }\n"):
        assert "perplexity " in run(stdin=prose).stdout


def test_a_json_array_is_read_as_its_elements(run: Callable[..., Result]) -> None:
    Path("lines.jsonl").write_text('"the king"\n{"text": "the horse", "id": "h"}\n')
    Path("array.jsonl").write_text('\n[\n  "the king",\n  {"text": "the horse",\n   "id": "h"}\n]\n')
    assert run("array.jsonl").stdout == run("lines.jsonl").stdout
    Path("broken.jsonl").write_text('[\n  "the king",\n')
    broken = run("broken.jsonl")
    assert broken.exit_code == 2 and broken.stderr.count("\n") == 1 and "one JSON value on each line" in broken.stderr
