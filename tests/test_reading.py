"""The door to untrusted files: one line, the file's name, and nothing that was meant for the caller is changed."""

import json
from pathlib import Path
from typing import Any

import pytest

import mlxgen
from mlxgen.errors import MlxgenError, ModelError, OptionError
from mlxgen.reading import reading
from mlxgen.weights import convert

from .support.models import tiny_gpt2


class PanicException(BaseException):
    """As of libraries in Rust."""


@pytest.mark.parametrize(
    "error",
    [
        ValueError("two\nlines"),
        RuntimeError(""),
        RecursionError(),
        OSError(36, "File name too long"),
        PanicException("x" * 10**6),
        MemoryError(),
        ModelError("no name"),
        ModelError("y" * 10**6),
    ],
)
def test_whatever_is_raised_names_the_file_in_one_line(error: BaseException) -> None:
    with pytest.raises(ModelError, match=r"^a/file: .") as caught, reading(Path("a/file")):
        raise error
    assert "\n" not in str(caught.value) and len(str(caught.value)) <= 2000


@pytest.mark.parametrize("error", [OptionError("wrong use"), ModelError("a/file: known"), KeyboardInterrupt()])
def test_other_errors_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, reading("a/file"):
        raise error
    assert caught.value is error


LONG = "x" * 5000 + ".safetensors"
BROKEN: dict[str, tuple[str, Any]] = {
    "extra special tokens that are a number": ("tokenizer_config.json", {"extra_special_tokens": 5}),
    "an added token at infinity": ("added_tokens.json", {"<x>": float("inf")}),
    "a shard with a very long name": (
        "model.safetensors.index.json",
        {"weight_map": {"a": LONG}},
    ),
    "another vocabulary": ("tokenizer.json", {}),
}


@pytest.mark.parametrize("case", BROKEN)
def test_strange_files_are_told_by_name(tmp_path: Path, case: str) -> None:
    folder = tiny_gpt2().write(tmp_path / "tales")
    name, content = BROKEN[case]
    (folder / name).write_text(json.dumps(content))
    if "index" in name:
        (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=str(folder)) as caught:
        mlxgen.load(str(folder))
    assert "\n" not in str(caught.value) and len(str(caught.value)) <= 2000


def test_a_vocabulary_larger_than_the_embedding_names_the_folder(tmp_path: Path) -> None:
    folder = tiny_gpt2().write(tmp_path / "tales")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {f"more{number}": 400 + number for number in range(100)}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match=f"{folder}: the vocabulary has .* tokens"):
        mlxgen.load(str(folder))


@pytest.mark.parametrize("mode", ["mxfp4", "nvfp4", "mxfp8"])
def test_a_packing_that_mlx_does_not_have_is_told(tmp_path: Path, mode: str) -> None:
    folder = tiny_gpt2().write(tmp_path / "tales")
    entries = json.loads((folder / "config.json").read_text())
    packing = {"mode": mode, "group_size": 64, "bits": 4}
    (folder / "config.json").write_text(json.dumps(entries | {"quantization": packing}))
    with pytest.raises(ModelError, match=f"config.json: quantization: {mode} has a group_size of"):
        mlxgen.load(str(folder))


@pytest.mark.parametrize("output", ["x" * 300, "bad\udcff"], ids=["too long", "not UTF-8"])
def test_an_output_that_cannot_be_named_is_told(tmp_path: Path, output: str) -> None:
    source = tiny_gpt2().write(tmp_path / "tales")
    with pytest.raises(MlxgenError, match="choose another with --output") as caught:
        convert(source, tmp_path / output)
    assert "\n" not in str(caught.value) and str(caught.value).isprintable()


@pytest.mark.parametrize("content", [{"a": "9" * 5000}, {"\ud800": 1}, {"itos": {"0": ["a"]}}, {"a": 10**4000}])
def test_strange_vocabularies_are_told(tmp_path: Path, content: Any) -> None:
    source = tiny_gpt2().write(tmp_path / "tales")
    vocab = tmp_path / "vocab.json"
    vocab.write_text(json.dumps(content))
    with pytest.raises(ModelError, match=str(vocab)) as caught:
        convert(source, tmp_path / "out", vocab=vocab)
    assert "\n" not in str(caught.value) and len(str(caught.value)) <= 2000
