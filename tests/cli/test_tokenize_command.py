"""`mlxgen tokenize` has the ids of transformers, in a folder without weights; --ids is the way back, and a prompt."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import transformers

import mlxgen

from ..support.hub import CONFIG, Hub
from ..support.models import SIZES, byte_tokenizer
from ..support.processes import fresh
from ..support.vocabularies import gpt2_folder
from .running import one_line, run


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> str:
    """GPT-2's vocabulary and a config, and no weights."""
    entries = {"model_type": "gpt2", "vocab_size": 50257, **SIZES}
    return str(gpt2_folder(tmp_path_factory.mktemp("models") / "gpt2", config=entries))


@pytest.fixture(scope="module")
def theirs(gpt2: str) -> transformers.GPT2Tokenizer:
    return transformers.GPT2Tokenizer.from_pretrained(gpt2)


@pytest.mark.parametrize("text", ["", "Far  far away\n", "naïve 😀 — <|endoftext|>\ufffd \x00\u2028", "日本語"])
def test_json_has_the_tokens_of_transformers(gpt2: str, theirs: transformers.GPT2Tokenizer, text: str) -> None:
    result = run("tokenize", text, "-m", gpt2, "--json")
    assert result.exit_code == 0, result.stderr
    entries = json.loads(result.stdout)
    ids = theirs.encode(text)
    assert (entries["model"], entries["text"], entries["tokens"]) == (gpt2, text, ids)
    assert entries["pieces"] == theirs.convert_ids_to_tokens(ids)
    assert entries["special"] == [token in theirs.all_special_ids for token in ids]
    assert entries["n_tokens"] == len(ids)
    for token, shown in zip(ids, entries["texts"], strict=True):
        whole = theirs.decode([token])
        assert shown == whole if "\ufffd" not in whole else shown.isprintable()
    assert set(entries) <= set(re.findall(r"\w+", run("tokenize", "--help").stdout))


def test_the_view_has_a_line_a_token_with_visible_spaces_and_marks_special_tokens(gpt2: str) -> None:
    result = run("tokenize", "Far  away\n\tit is 😀<|endoftext|>", "-m", gpt2)
    assert [line.split(maxsplit=1)[1] for line in result.stdout.splitlines()] == [
        "Far",
        "·",
        "·away",
        "↵",
        "→",
        "it",
        "·is",
        r"·\xf0\x9f\x98",
        r"\x80",
        "<|endoftext|>  (special)",
        "tokens, 31 characters",
    ]
    numbers = [int(line.split()[0]) for line in result.stdout.splitlines()]
    assert numbers[-1] == len(numbers) - 1 and numbers[-2] == 50256
    assert run("tokenize", "", "-m", gpt2).stdout == "0 tokens, 0 characters\n"


def test_the_text_may_come_from_standard_input(gpt2: str) -> None:
    shown = run("tokenize", "Far away", "-m", gpt2).stdout
    assert run("tokenize", "-m", gpt2, stdin="Far away\n").stdout == shown
    assert run("tokenize", "-", "-m", gpt2, stdin="Far away").stdout == shown
    nothing = run("tokenize", "-m", gpt2)
    assert nothing.exit_code == 2 and "standard input is empty" in nothing.stderr


@pytest.mark.parametrize("form", ["{} {}", "{},{}", "[{}, {}]", " {} ,\n{} ", "[{},{},]"])
def test_ids_become_their_text_again(folder: str, form: str) -> None:
    given = form.format(264, 272)
    expected = byte_tokenizer().decode([264, 272]) + "\n"
    assert run("tokenize", "--ids", given, "-m", folder).stdout == expected
    assert run("tokenize", "--ids", "-", "-m", folder, stdin=given + "\n").stdout == expected
    entries = json.loads(run("tokenize", "--ids", given, "-m", folder, "--json").stdout)
    assert entries["tokens"] == [264, 272] and entries["text"] + "\n" == expected


BAD_IDS = {
    "50257": "token id 50257 is not in the vocabulary (ids go from 0 to 50256)",
    "464 -1": "token id -1 is not in the vocabulary",
    "9" * 30: "--ids takes token ids such as",
    "464 3290.5": "not '3290.5'",
    "dog": "not 'dog'",
    "[464, [3290]]": "not '[3290]'",
    "": "--ids has no token ids",
    "[]": "--ids has no token ids",
}


@pytest.mark.parametrize("given", BAD_IDS)
def test_wrong_ids_are_refused_in_a_line(gpt2: str, given: str) -> None:
    result = run("tokenize", "--ids", given, "-m", gpt2)
    assert result.exit_code == 2 and not result.stdout
    assert BAD_IDS[given] in result.stderr and result.stderr.splitlines()[-1].startswith("Error: ")


def test_a_text_and_ids_are_one_too_many(folder: str) -> None:
    for command in ("tokenize", "generate", "trace"):
        result = run(command, "Far", "--ids", "5", "-m", folder)
        assert result.exit_code == 2 and "give one of them" in result.stderr, command


def test_nothing_heavy_is_imported(gpt2: str) -> None:
    script = (
        f"import json, sys, io; sys.stdout = io.StringIO(); from mlxgen.cli.main import main\n"
        f"main(['tokenize', 'Far away', '-m', {gpt2!r}], standalone_mode=False)\n"
        "heavy = [m for m in ("
        "'mlx', 'numpy', 'torch', 'transformers', 'huggingface_hub', 'rich'"
        ") if m in sys.modules]\n"
        "print(json.dumps([sys.stdout.getvalue(), heavy]), file=sys.__stdout__)"
    )
    shown, heavy = fresh(script)
    assert "·away" in shown and heavy == []


def test_weights_on_the_hub_are_not_downloaded(hub: Hub) -> None:
    config = {**json.loads(CONFIG), "vocab_size": 300}
    hub.repos["someone/tales"] = {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": byte_tokenizer().to_str().encode(),
        "model.safetensors": b"weights",
    }
    shown = run("tokenize", "Far away", "-m", "someone/tales")
    assert shown.exit_code == 0 and "Far\n" in shown.stdout
    assert hub.downloaded == {"config.json", "tokenizer.json"}
    hub.repos.clear()  # now the hub has nothing, and the cache will do
    hub.refusals["someone/tales"] = (503, "")
    assert run("tokenize", "Far away", "-m", "someone/tales").stdout == shown.stdout


def test_a_damaged_folder_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    result = run("tokenize", "Far", "-m", str(tmp_path))
    assert result.exit_code == 1 and one_line(result.stderr) and "no tokenizer" in result.stderr


# Ids as a prompt


def test_ids_are_a_prompt_of_generate(folder: str, model: mlxgen.Model) -> None:
    ids = model.tokenizer.encode("Far away")
    given, options = " ".join(map(str, ids)), ("-m", folder, "-n", "8", "--seed", "3")
    expected = mlxgen.generate(model, ids, max_tokens=8, seed=3)
    assert run("generate", "--ids", given, *options).stdout == expected.text + "\n"
    assert run("generate", "--ids", "-", *options, stdin=given).stdout == expected.text + "\n"
    assert run("generate", "--ids", given, *options, "--echo").stdout == f"Far away{expected.text}\n"
    entries = json.loads(run("generate", "--ids", given, *options, "--json").stdout)
    assert (entries["prompt"], entries["tokens"]) == (ids, expected.tokens)
    shown = run("tokenize", "Far away", "-m", folder, "--json").stdout
    again = run("generate", "--ids", str(json.loads(shown)["tokens"]), *options)
    assert again.stdout == expected.text + "\n"


def test_ids_are_a_prompt_of_trace(folder: str, model: mlxgen.Model) -> None:
    ids = model.tokenizer.encode("Far away")
    options = ("-m", folder, "-n", "3", "--seed", "3", "--json")
    by_ids, by_text = (
        json.loads(run("trace", *prompt, *options).stdout) for prompt in (["--ids", str(ids)], ["Far away"])
    )
    assert by_ids["prompt"] == ids and by_ids["prompt_tokens"] == by_text["prompt_tokens"]
    assert by_ids["tokens"] == by_text["tokens"]


def test_ids_outside_the_vocabulary_are_refused_by_generate(folder: str) -> None:
    result = run("generate", "--ids", "5 282", "-m", folder)
    assert result.exit_code == 2 and "token id 282 is outside the vocabulary (0 to 281)" in result.stderr
