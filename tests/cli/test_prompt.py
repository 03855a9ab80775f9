"""Text from the command line: in any locale, and with characters that the model's vocabulary does not have."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mlxgen.weights.conversion.characters import character_tokenizer

from ..support.models import letter_tokenizer, tiny_gpt2
from .running import command, run

LETTERS = {letter: at for at, letter in enumerate("\n abcdefghijklmnopqrstuvwxyz")}
TOLD = "the model's vocabulary has no token for 'Ü' (U+00DC) at character 1:"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0"}  # without the UTF-8 that Python would choose by itself


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of the letters a to z, such as a converted nanoGPT."""
    folder = tiny_gpt2(tokenizer=letter_tokenizer(list(LETTERS)), n_embd=16, n_layer=1, n_head=2).write(
        tmp_path_factory.mktemp("models") / "letters"
    )
    (folder / "tokenizer.json").write_text(character_tokenizer(LETTERS))
    return str(folder)


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "Ünder"],
        ["generate"],
        ["trace", "Ünder", "-n", "2"],
        ["score", "--context", "Ünder"],
        ["score"],
    ],
    ids=" ".join,
)
def test_a_character_without_a_token_is_an_error_of_every_command(letters: str, arguments: list[str]) -> None:
    stdin = "ab\n" if "--context" in arguments else "Ünder\n"
    result = run(*arguments, "-m", letters, stdin=stdin)
    assert result.exit_code == 2 and TOLD in result.stderr and not result.stdout


def test_a_line_of_a_batch_or_of_a_score_has_the_error_and_the_others_go_on(letters: str, tmp_path: Path) -> None:
    prompts = tmp_path / "in.jsonl"
    prompts.write_text('{"prompt": "Ünder"}\n{"prompt": "under"}\n')
    result = run("batch", str(prompts), "-m", letters, "-n", "3")
    wrong, right = sorted((json.loads(line) for line in result.stdout.splitlines()), key=lambda entry: entry["id"])
    assert result.exit_code == 1 and TOLD in wrong["error"] and len(right["tokens"]) == 3
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"context": "a", "choices": ["b", "Ünder"]}\n{"text": "under"}\n')
    result = run("score", str(texts), "-m", letters)
    wrong, right = (json.loads(line) for line in result.stdout.splitlines())
    assert result.exit_code == 1 and TOLD in wrong["error"] and right["n_scored"] == 5


def test_a_chat_goes_on_after_it(letters: str) -> None:
    result = run("chat", "-m", letters, "-n", "3", "--json", stdin="under\nÜnder\nover\n")
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    told = TOLD.partition(" at ")[0]  # the place counts from the last answer, after which a paragraph begins
    assert [told in answer.get("error", "") for answer in answers] == [False, True, False]
    assert answers[2]["turn"] == 2 and result.exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        (["generate", "é", "--json"], b""),
        (["generate", "a", "--stop", "é", "--json"], b""),
        (["trace", "é", "--json"], b""),
        (["score", "--context", "é", "--json"], "é".encode()),
        (["chat", "--system", "é", "--json"], "é".encode()),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_text_is_utf8_in_every_locale(arguments: list[str], stdin: bytes) -> None:
    """What an ASCII locale gives is what a UTF-8 locale gives."""
    options = [] if arguments[0] == "score" else ["-n", "2", "--greedy"]
    outputs = []
    for locale in (ASCII, {"PYTHONUTF8": "1"}):
        given = {"stdin": None, "input": stdin} if stdin else {}
        done = command(*arguments, *options, env={**os.environ, **locale}, **given)
        assert done.returncode == 0, done.stderr
        outputs.append(json.loads(done.stdout.splitlines()[0]))
    for one in outputs:
        for name in ("seed", "prompt_tps", "generation_tps", "peak_memory", "steps"):
            one.pop(name, None)
    assert outputs[0] == outputs[1]
    assert "é" in json.dumps(outputs[0], ensure_ascii=False) or "--stop" in arguments or "--context" in arguments


def test_bytes_that_are_not_utf8_are_wrong_use_there_too() -> None:
    for option in ([], ["a", "--stop"]):
        done = command("generate", *option, b"\xff", env={**os.environ, **ASCII})  # type: ignore[arg-type]
        assert done.returncode == 2 and b"is not UTF-8 text" in done.stderr
