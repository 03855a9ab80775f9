"""Vocabularies of single characters, as nanoGPT's and minGPT's examples use them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from mlxgen.errors import ModelError
from mlxgen.json_file import describe, read_json
from mlxgen.weights.sources.pytorch import read_plain_pickle

MAX_BYTES = 64 << 20
SETTINGS = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}


def tokenizer_of(file: Path, vocab_size: int) -> dict[str, Path | bytes]:
    """The tokenizer files for a vocabulary file, which is a tokenizer.json itself or maps characters to ids.

    Raises ModelError.
    """
    content = read_plain_pickle(file) if file.suffix == ".pkl" else read_json(file, MAX_BYTES)
    if isinstance(content, dict) and isinstance(content.get("model"), dict) and "vocab" in content["model"]:
        return {"tokenizer.json": file}  # the tokenizers library's own format
    vocabulary = read_vocabulary(content, file)
    if not vocabulary:
        raise ModelError(f"{file}: contains no vocabulary")
    highest = max(vocabulary.values())
    if highest >= vocab_size:
        raise ModelError(
            f"{file}: has token id {describe(highest)}, but the model has only {vocab_size} tokens, so this is not the "
            "model's vocabulary"
        )
    return {
        "tokenizer.json": character_tokenizer(vocabulary).encode(),
        "tokenizer_config.json": json.dumps(SETTINGS, indent=2).encode(),
    }


def read_vocabulary(content: Any, file: Path) -> dict[str, int]:
    """Character -> id, from {"stoi": {…}}, {"itos": {…}} or the mapping itself. Raises ModelError."""
    if isinstance(content, Mapping) and isinstance(content.get("stoi"), Mapping):
        content = content["stoi"]
    elif isinstance(content, Mapping) and isinstance(content.get("itos"), Mapping):
        pairs = [(text, number) for number, text in content["itos"].items()]
        return _checked(pairs, file)
    if not isinstance(content, Mapping):
        raise ModelError(f'{file}: not a vocabulary, which is a JSON object {{"character": id, …}}')
    return _checked(content.items(), file)


def _checked(pairs: Iterable[tuple[Any, Any]], file: Path) -> dict[str, int]:
    """The vocabulary of (character, id) pairs, which may be anything. Raises ModelError."""
    vocabulary: dict[str, int] = {}
    for text, number in pairs:
        whole = int(number) if isinstance(number, str) and number.isdecimal() and len(number) < 20 else number
        if (
            not isinstance(text, str)
            or len(text) != 1
            or "\ud800" <= text <= "\udfff"
            or type(whole) is not int
            or whole < 0
        ):
            entry = f"{describe(text)}: {describe(number)}"
            raise ModelError(f"{file}: not a vocabulary of single characters and their ids ({entry})")
        vocabulary[text] = whole
    if len(set(vocabulary.values())) != len(vocabulary):
        raise ModelError(f"{file}: gives the same id to two characters")
    return vocabulary


def character_tokenizer(vocabulary: Mapping[str, int]) -> str:
    """The text of a tokenizer.json with one token for each character. Text with any other character is an error."""
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=dict(vocabulary), merges=[]))
    library.decoder = tokenizers.decoders.Fuse()
    return library.to_str(pretty=True)
