"""Text from the command line: in any locale, and with characters that the model's vocabulary does not have."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

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


# A prompt that is the path of a model


def _checkpoints(folder: Path) -> dict[str, str]:
    """Paths of models and checkpoints, and what is said of each."""
    tiny = tiny_gpt2(n_embd=16, n_layer=1, n_head=2)
    tiny.write(folder / "model")
    torch.save({"w": torch.zeros(2)}, folder / "ckpt.pt")
    (folder / "out").mkdir()
    torch.save({"w": torch.zeros(2)}, folder / "out" / "ckpt.pt")
    (folder / "model.gguf").write_bytes(b"GGUF" + bytes(20))
    return {
        "model": "is a model folder; open it with `-m {}`",
        "model/model.safetensors": "is a safetensors file; ",
        "ckpt.pt": "is a PyTorch checkpoint; convert it with `mlxgen convert {}`",
        "out": "convert it with `mlxgen convert {}/ckpt.pt`",
        "model.gguf": "is a GGUF file",
    }


@pytest.mark.parametrize("name", ["generate", "trace", "tokenize"])
def test_the_path_of_a_model_is_no_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    said = _checkpoints(tmp_path)
    monkeypatch.chdir(tmp_path)
    for path, words in said.items():
        for written in (path, str(tmp_path / path)):
            result = run(name, written, "-m", "/no/such/folder")
            assert result.exit_code == 2, written
            assert words.format(written) in result.stderr and "standard input" in result.stderr
            assert result.stderr.splitlines()[-1].startswith("Error: ")


def test_on_standard_input_it_is_one(letters: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _checkpoints(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run("tokenize", "-m", letters, stdin="model").stdout.splitlines()[-1] == "5 tokens, 5 characters"


def test_the_name_of_any_other_file_or_folder_is_a_prompt(
    letters: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "king").write_text("once upon a time\n")
    (tmp_path / "page").write_text("<!doctype html><html></html>")
    (tmp_path / "zip").write_bytes(b"\x1f\x8b" + bytes(20))
    (tmp_path / "none").write_bytes(b"")
    for folder in ("empty", "config", "texts"):
        (tmp_path / folder).mkdir()
    (tmp_path / "config" / "config.json").write_text("{}")
    (tmp_path / "texts" / "king.bin").write_text("once upon a time\n")
    for text in ("king", "page", "zip", "none", "empty", "config", "texts", "nothing"):
        options = ("-m", letters, "-n", "4", "--greedy", "--json")
        named, piped = run("generate", text, *options), run("generate", *options, stdin=text)
        assert named.exit_code == 0, named.stderr
        assert json.loads(named.stdout)["tokens"] == json.loads(piped.stdout)["tokens"], text


def test_a_long_text_is_not_looked_for_among_the_files(letters: str) -> None:
    assert run("generate", "king " * 1000, "-m", letters, "--overflow", "slide", "-n", "2").exit_code == 0


def test_a_prompt_of_several_arguments_is_told_of_quotes() -> None:
    for name, what in (("generate", "prompt"), ("trace", "prompt"), ("tokenize", "text")):
        result = run(name, "Once", "upon", "a", "time")
        assert result.exit_code == 2
        assert f"(upon a time). The {what} is one argument, so put it in quotes" in result.stderr
    assert "in quotes" not in run("info", "gpt2", "gpt2").stderr


def test_a_checkpoint_is_no_file_of_texts(tmp_path: Path) -> None:
    said = _checkpoints(tmp_path)
    for name in ("score", "batch"):
        result = run(name, str(tmp_path / "ckpt.pt"))
        assert result.exit_code == 2 and said["ckpt.pt"].format(tmp_path / "ckpt.pt") in result.stderr
