"""The tokenizer in a GGUF file's metadata, as the files of a model folder.

llama.cpp lists all tokens with a type each. A padded embedding has placeholders, [PAD50257] and so on, which are left
out: no text has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken

from mlxgen.errors import printable
from mlxgen.json_file import describe
from mlxgen.weights.sources.gguf_header import GGUFError

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5  # types of tokens
#: What splits a text into words as GPT-2 does; files of before 2024 do not say, and mean the same.
LIKE_GPT2 = (None, "default", "gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "mpt", "olmo", "jais", "trillion")
ROLES = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
END_OF_TURN = "tokenizer.ggml.eot_token_id"


def end_tokens(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The start and end tokens as entries of a config.json."""
    start = _token_id(metadata, ROLES["bos_token"])
    ends = [_token_id(metadata, key) for key in (ROLES["eos_token"], END_OF_TURN)]
    ids = list(dict.fromkeys(number for number in ends if number is not None))
    entries: dict[str, Any] = {} if start is None else {"bos_token_id": start}
    return entries | ({"eos_token_id": ids[0] if len(ids) == 1 else ids} if ids else {})


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """tokenizer.json and tokenizer_config.json. Raises GGUFError for other tokenizers than GPT-2's kind."""
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise GGUFError(
            f"its tokenizer is {describe(model)}, not GPT-2's byte-level BPE" if model else "has no tokenizer"
        )
    if (splitter := metadata.get("tokenizer.ggml.pre")) not in LIKE_GPT2:
        raise GGUFError(f"its tokenizer splits words as {describe(splitter)}, not as GPT-2's")
    tokens = _texts(metadata, "tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise GGUFError("is damaged (tokenizer.ggml.token_type does not have one type for each token)")
    placeholders = {
        at for at, token in enumerate(tokens) if token == f"[PAD{at}]" and types[at] in (USER_DEFINED, UNUSED)
    }
    vocabulary = {token: at for at, token in enumerate(tokens) if at not in placeholders}
    if len(vocabulary) != len(tokens) - len(placeholders):
        raise GGUFError("is damaged (tokenizer.ggml.tokens has a token twice)")
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, _merges(metadata, vocabulary)))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    library.add_tokens(
        [
            AddedToken(token, special=types[at] == CONTROL, normalized=False)
            for token, at in vocabulary.items()
            if types[at] in (CONTROL, USER_DEFINED) and token
        ]
    )
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for role, key in ROLES.items():
        number = _token_id(metadata, key)
        if number is not None and number < len(tokens) and number not in placeholders:
            settings[role] = tokens[number]
    start = settings.get("bos_token")
    if metadata.get("tokenizer.ggml.add_bos_token") is True and start is not None:
        library.post_processor = tokenizers.processors.TemplateProcessing(
            single=[start, "$A"], special_tokens=[(start, vocabulary[start])]
        )
    if isinstance(template := metadata.get("tokenizer.chat_template"), str):
        settings["chat_template"] = template
    return {
        "tokenizer.json": library.to_str(pretty=True).encode(),
        "tokenizer_config.json": json.dumps(settings, indent=2).encode(),
    }


def _merges(metadata: Mapping[str, Any], vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """The pairs of tokens that are joined, in order."""
    merges = []
    for text in _texts(metadata, "tokenizer.ggml.merges") if "tokenizer.ggml.merges" in metadata else []:
        left, _, right = text.partition(" ")
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise GGUFError(
                f"is damaged (tokenizer.ggml.merges joins texts that are not tokens: {printable(text, 60)})"
            )
        merges.append((left, right))
    return merges


def _texts(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise GGUFError(f"has no {key}, or no list of texts there")
    return value


def _token_id(metadata: Mapping[str, Any], key: str) -> int | None:
    value = metadata.get(key)
    if value is not None and (type(value) is not int or value < 0):
        raise GGUFError(f"{key} is {describe(value)}; it must be a token id")
    return value
