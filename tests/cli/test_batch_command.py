"""`mlxgen batch`: what a line may ask for, and what comes of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import mlxgen

from .jsonl_files import objects, write_lines


def test_each_line_is_answered_with_its_own_options(run_here: Callable[..., Result], small_folder: Path) -> None:
    write_lines(
        "in.jsonl",
        [
            '"the king"',
            {"prompt": "a", "id": "x", "max_tokens": 3, "temperature": 0, "metadata": {"n": [1, None]}},
            "",
            {"prompt": [5, 6], "seed": 4, "top_k": None, "top_p": 0.5, "num_samples": 2},
        ],
    )
    result = run_here("batch", "in.jsonl", "-o", "out.jsonl", "-n", "6", "--seed", "3", "--ignore-eos", "--logprobs")
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    found = objects(Path("out.jsonl").read_text())
    assert [(entry["id"], entry["sample"]) for entry in found] == [(1, 0), ("x", 0), (4, 0), (4, 1)]
    assert found[1]["metadata"] == {"n": [1, None]} and "metadata" not in found[0]
    model = mlxgen.load(str(small_folder))
    expected = [
        mlxgen.generate(model, "the king", max_tokens=6, seed=3, ignore_eos=True),
        mlxgen.generate(model, "a", max_tokens=3, temperature=0, ignore_eos=True),
        mlxgen.generate(model, [5, 6], max_tokens=6, seed=4, top_k=None, top_p=0.5, ignore_eos=True),
    ]
    for entry, alone in zip(found, expected, strict=False):
        assert (entry["text"], entry["tokens"], entry["finish_reason"], entry["prompt"]) == (
            alone.text,
            alone.tokens,
            alone.finish_reason,
            alone.prompt,
        )
        assert entry["logprobs"] == pytest.approx(alone.logprobs, abs=1e-4)
        assert entry["prompt_tokens"] == len(alone.prompt_tokens)
    assert found[0]["seed"] == 3 and found[1]["seed"] is None and found[2]["seed"] == 4


def test_standard_input_and_plain_text(run_here: Callable[..., Result]) -> None:
    result = run_here("batch", "-n", "2", stdin='the king\r\n\n"a"\n')
    assert [(entry["id"], entry["prompt"]) for entry in objects(result.stdout)] == [(1, "the king"), (3, '"a"')]
    result = run_here("batch", "-", "-o", "-", "-n", "2", stdin='"the king"\n{"prompt": "a"}\n')
    assert [entry["prompt"] for entry in objects(result.stdout)] == ["the king", "a"]
    result = run_here("batch", "--format", "text", "-n", "2", stdin='{"a"}\n')
    assert [entry["prompt"] for entry in objects(result.stdout)] == ['{"a"}']


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "the line is not JSON"),
        ("[1]", "the line must be a JSON string or object"),
        ('{"prompt": NaN}', "NaN is not a JSON number"),
        ("[" * 100_000, "the line is not JSON"),
        ({"text": "a"}, "unknown key 'text'"),
        ({"id": "x"}, "prompt is missing"),
        ({"prompt": 5}, "prompt must be text or a list of token ids"),
        ({"prompt": "a" * 33}, "the prompt has 33 tokens, more than the model's 32 positions"),
        ({"prompt": [999]}, "token id 999 is outside the vocabulary"),
        ({"prompt": "\ud800"}, "invalid character"),
        ({"prompt": "a", "temperature": -1}, "temperature must be 0"),
        ({"prompt": "a", "temperature": "hot"}, "temperature must be 0"),
        ({"prompt": "a", "max_tokens": "9"}, "max_tokens must be"),
        ({"prompt": "a", "num_samples": 1.5}, "num_samples must be"),
        ({"prompt": "a", "stop": [1]}, "a stop text must be text"),
        ({"prompt": "a", "stop": ""}, "a stop text must not be empty"),
        ({"prompt": "a", "seed": -1}, "seed must be"),
        ({"prompt": "a", "bad_words": [5]}, "each of bad_words must be a text or a list of token ids, not 5"),
        ({"prompt": "a", "suppress_tokens": "5"}, "suppress_tokens must be a list of token ids"),
        ({"prompt": "a", "min_tokens": 3}, "min_tokens must be at most max_tokens (2), not 3"),
        ({"prompt": "a", "no_repeat_ngram_size": 3}, "did you mean no_repeat_ngram?"),
        ({"prompt": "a", "ignore_eos": 1}, "ignore_eos must be True or False"),
        ({"prompt": "a", "id": [1]}, "id must be text or a whole number"),
        ({"prompt": "a", "id": "first"}, 'id "first" is already used by line 1'),
    ],
)
def test_a_bad_line_becomes_an_error_and_the_rest_goes_on(
    run_here: Callable[..., Result], line: Any, message: str
) -> None:
    write_lines("in.jsonl", [{"prompt": "a", "id": "first"}, line, '"last"'])
    result = run_here("batch", "in.jsonl", "-o", "out.jsonl", "-n", "2", "--seed", "1")
    assert result.exit_code == 1
    assert "1 of 3 lines failed" in result.stderr
    first, failed, last = objects(Path("out.jsonl").read_text())
    assert (first["id"], last["id"]) == ("first", 3)
    assert failed["line"] == 2 and message in failed["error"]


def test_the_bar_counts_lines_when_nothing_more_comes_of_them(
    run_here: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[int] = []
    monkeypatch.setattr("mlxgen.cli.jsonl.run.chatty", lambda *_: True)
    monkeypatch.setattr("mlxgen.cli.progress.stderr_is_terminal", lambda: True)
    monkeypatch.setattr("mlxgen.cli.progress.ProgressBar.__call__", lambda _, finished, *__: shown.append(finished))
    write_lines("in.jsonl", [{"prompt": "a", "num_samples": 3, "max_tokens": 5}, "broken", {"prompt": "b"}])
    run_here("batch", "in.jsonl", "-n", "2", "--ignore-eos", "--seed", "1", "-o", "out.jsonl")
    assert shown == [1, 2, 2, 2, 3]  # the broken line and the short one, then the third of the samples
    shown.clear()
    run_here("batch", "in.jsonl", "-n", "2", "--ignore-eos", "--seed", "1", "-o", "out.jsonl")
    assert shown == [2]  # the first was done already; the last is, without an outcome
