"""A JSON file from strangers is read, or refused in one line that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxgen.errors import ModelError
from mlxgen.json_file import describe, read_json


def test_an_object_is_read_whatever_its_encoding(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        file.write_text('{"a": "é"}', encoding=encoding)
        assert read_json(file) == {"a": "é"}


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('{"a": "' + "b" * (1 << 20) + '"}')
    assert read_json(file, 2 << 20)
    with pytest.raises(ModelError, match=r"x\.json: larger than 1 MB"):
        read_json(file, 1 << 20)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"[1]", "must contain a JSON object, but contains a list"),
        (b'"x"', 'must contain a JSON object, but contains "x"'),
        (b"{", "not valid JSON"),
        (b'{"a": "\xff"}', "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_anything_but_an_object_is_refused_in_one_line(tmp_path: Path, content: bytes, told: str) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        read_json(file)
    assert str(caught.value).startswith(f"{file}: ") and told in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        read_json(tmp_path / "x.json")
    with pytest.raises(ModelError, match="directory"):
        read_json(tmp_path)


def test_values_are_described_on_one_line() -> None:
    assert describe("a\nb") == '"a\\nb"'
    assert describe({}) == "an object" and describe([]) == "a list" and describe(None) == "null"
    assert describe(10**5000) == "a number far too large"
    assert len(describe("x" * 1000)) == 60
