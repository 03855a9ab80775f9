"""Text that a vocabulary has no tokens for: found, with its place, and never dropped."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from mlxgen.errors import OptionError
from mlxgen.text.tokenizer import Tokenizer, load_tokenizer
from mlxgen.text.unknown_text import unknown_finder
from mlxgen.weights.conversion.characters import character_tokenizer

LETTERS = "abcdenrÜ \n"


def opened(folder: Path, library: tokenizers.Tokenizer) -> Tokenizer:
    library.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder)


@pytest.fixture
def characters(tmp_path: Path) -> Tokenizer:
    """A character tokenizer as `mlxgen convert` writes it."""
    (tmp_path / "tokenizer.json").write_text(character_tokenizer({letter: at for at, letter in enumerate(LETTERS)}))
    return load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1984", ["'1' (U+0031)", "at character 1:"]),
        ("Ünder §", ["'§' (U+00A7)", "at character 7:"]),
        ("bad\ncat€\n", ["'t' (U+0074)", "at character 3 of line 2:"]),
        ("abc\t", [r"'\t' (U+0009)", "at character 4:"]),
        ("🐸", ["'🐸' (U+1F438)"]),
    ],
)
def test_the_first_character_without_a_token_is_named_with_its_place(
    characters: Tokenizer, text: str, words: list[str]
) -> None:
    with pytest.raises(OptionError) as caught:
        characters.encode(text)
    message = str(caught.value)
    assert all(word in message for word in words) and "\n" not in message


@given(st.text(alphabet=LETTERS + "1€", max_size=12))
def test_a_character_tokenizer_encodes_all_of_a_text_or_none(text: str) -> None:
    library = tokenizers.Tokenizer.from_str(character_tokenizer({letter: at for at, letter in enumerate(LETTERS)}))
    find = unknown_finder(library)
    assert find is not None
    first = next((at for at, letter in enumerate(text) if letter not in LETTERS), None)
    assert find(text) == (None if first is None else (first, first + 1))


def test_an_added_token_may_be_spelled_with_characters_that_have_none(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    library.add_special_tokens(["<|x|>"])
    tokenizer = opened(tmp_path, library)
    assert tokenizer.encode("ab<|x|>b") == [2, 3, 1]
    with pytest.raises(OptionError, match=r"'<' \(U\+003C\) at character 8"):
        tokenizer.encode("ab<|x|><")


def test_normalised_and_split_text_counts_as_the_model_sees_it(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer(models.BPE({"a": 0, "é": 1, "b</w>": 2}, [], end_of_word_suffix="</w>"))
    library.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = opened(tmp_path, library)
    assert unknown_finder(library) is not None
    assert tokenizer.encode("aE\u0301b A") == tokenizer.encode("aéb\n a")  # a mark joins its letter; white space goes
    with pytest.raises(OptionError, match="'C'"):
        tokenizer.encode("ab C")


def test_a_byte_level_vocabulary_without_every_byte_is_one_of_these(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer(models.BPE({"a": 0, "Ġ": 1, "Ã": 2}, []))  # of é, c3 a9, the first byte alone
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    tokenizer = opened(tmp_path, library)
    assert tokenizer.encode("a a") == [0, 1, 0]
    with pytest.raises(OptionError, match="'é'"):
        tokenizer.encode("aé")


@pytest.mark.parametrize(
    "model",
    [
        models.WordLevel({"far": 0, "away": 1}, unk_token="[UNK]"),
        models.WordPiece({"far": 0, "away": 1}, unk_token="[UNK]"),
        models.Unigram([(piece, 0.0) for piece in ("far", "away", *"farwy")]),
        models.BPE({piece: at for at, piece in enumerate(["f", "a", "r", "w", "y"])}, [], unk_token="[UNK]"),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_vocabulary_whose_unknown_token_is_missing_names_the_word(tmp_path: Path, model: models.Model) -> None:
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = opened(tmp_path, library)
    assert tokenizer.encode("far away")
    with pytest.raises(OptionError, match="no token for 'behind' at character 5:"):
        tokenizer.encode("far behind away")


@pytest.mark.parametrize(
    "library",
    [
        tokenizers.Tokenizer(models.BPE({"a": 0, "?": 1}, [], unk_token="?")),
        tokenizers.Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?")),
        tokenizers.Tokenizer(models.Unigram([("a", 0.0), ("?", 0.0)], unk_id=1)),
        tokenizers.Tokenizer(models.BPE({f"<0x{byte:02X}>": byte for byte in range(256)}, [], byte_fallback=True)),
    ],
)
def test_nothing_is_looked_for_where_every_text_has_tokens(library: tokenizers.Tokenizer) -> None:
    assert unknown_finder(library) is None
    assert library.encode("€").ids
