"""A model folder as transformers saves it: GPT-2's Conv1D weights, [in, out], and the small files that it expects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import mlx.core as mx

from mlxgen.safetensors_header import TensorEntry
from mlxgen.text.tokenizer import Tokenizer
from mlxgen.weights.files.writer import TensorGroup
from mlxgen.weights.layouts import HEAD, PRODUCTS


def as_conv1d(group: TensorGroup) -> TensorGroup:
    """A parameter under the name and in the shape that GPT2LMHeadModel has it."""
    (name, entry), *_ = group.tensors.items()  # unquantized parameters have one tensor
    turned = name.endswith(PRODUCTS)
    shape = entry.shape[::-1] if turned else entry.shape
    published = name if name == HEAD else f"transformer.{name.removeprefix('model.')}"

    def compute() -> Sequence[mx.array]:
        (array,) = group.compute()
        return [array.T if turned else array]

    return TensorGroup({published: TensorEntry(entry.dtype, shape)}, compute)


def write_expected_files(folder: Path, entries: Mapping[str, object], tokenizer: Tokenizer) -> None:
    """Add generation_config.json and tokenizer_config.json where the source has none. entries: of config.json.

    Without the latter, transformers takes any tokenizer.json of a GPT-2 for one of OpenAI's.
    """
    generation = folder / "generation_config.json"
    if not generation.is_file():
        ends = {name: entries.get(name) for name in ("bos_token_id", "eos_token_id")}
        _write_json(generation, {"_from_model_config": True, **ends})
    settings = folder / "tokenizer_config.json"
    if (folder / "tokenizer.json").is_file() and not settings.is_file():
        ids = {"bos_token": tokenizer.bos_token_id, "eos_token": tokenizer.eos_token_id}
        roles = {role: tokenizer.token(number) for role, number in ids.items() if number is not None}
        known = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        _write_json(settings, {**known, **roles})


def _write_json(path: Path, entries: Mapping[str, object]) -> None:
    path.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
