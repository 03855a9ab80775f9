"""A tokenizer as the metadata of a GGUF file: what llama.cpp's own conversion writes for GPT-2."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mlxgen.errors import ModelError
from mlxgen.text.tokenizer import Tokenizer
from mlxgen.weights.sources.gguf_tokenizer import CONTROL, ROLES, UNUSED, USER_DEFINED

NORMAL = 1
LOOKS_SPECIAL = re.compile(r"<\|.*\|>|<pad>|<mask>", re.DOTALL)


def vocabulary_entries(tokenizer: Tokenizer, vocab_size: int) -> dict[str, Any]:
    """The entries tokenizer.ggml.* and the chat template. vocab_size: rows of the embedding, each of which is named.

    Raises ModelError for a tokenizer other than a byte-level BPE that splits words as GPT-2 does.
    """
    description = tokenizer.description() or {}
    _check_kind(description)
    model = description["model"]
    tokens = {int(number): str(token) for token, number in model["vocab"].items()}
    types = dict.fromkeys(tokens, NORMAL)
    for added in description.get("added_tokens") or []:
        special = added["special"] or LOOKS_SPECIAL.fullmatch(added["content"])
        tokens[added["id"]] = added["content"]
        types[added["id"]] = CONTROL if special else USER_DEFINED
    ids = range(vocab_size)  # an added token without a row in the embedding is left out
    entries: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [tokens.get(number, f"[PAD{number}]") for number in ids],
        "tokenizer.ggml.token_type": [types.get(number, UNUSED) for number in ids],
        "tokenizer.ggml.merges": [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]],
    }
    roles = {"bos_token": tokenizer.bos_token_id, "eos_token": tokenizer.eos_token_id}
    entries |= {ROLES[role]: number for role, number in roles.items() if number is not None}
    if tokenizer.start_ids not in ((), (tokenizer.bos_token_id,)):
        raise ModelError("its tokenizer puts more than a start token before a text, which GGUF cannot express")
    entries["tokenizer.ggml.add_bos_token"] = bool(tokenizer.start_ids)
    if tokenizer.chat_template is not None:
        entries["tokenizer.chat_template"] = tokenizer.chat_template
    return {key: value for key, value in entries.items() if value != []}


def _check_kind(description: Mapping[str, Any]) -> None:
    """Raise ModelError for what llama.cpp's GPT-2 tokenizer does not do."""
    model = description.get("model") or {}
    splitter = description.get("pre_tokenizer") or {}
    if splitter.get("type") == "Sequence" and len(splitter.get("pretokenizers", ())) == 1:
        splitter = splitter["pretokenizers"][0]
    problems = {
        "is not a byte-level BPE": model.get("type") != "BPE" or splitter.get("type") != "ByteLevel",
        "splits words by another rule than GPT-2's": splitter.get("use_regex") is False,
        "puts a space before a text": splitter.get("add_prefix_space", True),
        "normalizes texts": description.get("normalizer") is not None,
        "marks the parts of words": bool(model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")),
        "leaves out merges": bool(model.get("ignore_merges")),
    }
    found = next((problem for problem, is_there in problems.items() if is_there), None)
    if found is not None:
        raise ModelError(f"its tokenizer {found}, and GGUF's gpt2 has only GPT-2's kind of tokenizer; write --to hf")
