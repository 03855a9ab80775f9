"""Writing a model folder, MLX's or Hugging Face's: config, tokenizer, card, licence and weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxgen.errors import MlxgenError, ModelError
from mlxgen.text.tokenizer import Tokenizer, load_tokenizer
from mlxgen.weights.conversion.card import licence_files
from mlxgen.weights.conversion.output_format import HF
from mlxgen.weights.conversion.tokenizer_choice import Files
from mlxgen.weights.conversion.written_config import with_start_and_end
from mlxgen.weights.files.origin import Origin, write_origin
from mlxgen.weights.files.writer import TensorGroup, WriteProgress, write_weights
from mlxgen.weights.hub.names import BUNDLED, BUNDLED_FOLDER
from mlxgen.weights.sources.checkpoint import Checkpoint

SPARE_BYTES = 16 << 20  # room for the small files


def write_model_folder(
    folder: Path,
    to: str,
    checkpoint: Checkpoint,
    entries: Mapping[str, Any],
    files: Files,
    card: str,
    groups: Sequence[TensorGroup],
    progress: WriteProgress | None,
) -> Tokenizer:
    """Write everything into an empty folder; the weights last. entries: of config.json. Returns the tokenizer.

    Raises ModelError for a tokenizer that cannot be opened, and OSError.
    """
    _write_json(folder / "config.json", entries)
    generation = checkpoint.folder / "generation_config.json"
    copied: Files = {generation.name: generation} if generation.is_file() else {}
    copied |= {path.name: path for path in licence_files(checkpoint.folder)}
    write_files(folder, copied | files)
    (folder / "README.md").write_text(card, encoding="utf-8")
    write_origin(folder, origin_of(checkpoint))
    tokenizer = checked_tokenizer(folder, entries["vocab_size"])
    entries = with_start_and_end(entries, tokenizer)
    _write_json(folder / "config.json", entries)
    if to == HF:
        _write_expected_files(folder, entries, tokenizer)
    write_weights(folder, groups, progress, metadata_format="pt" if to == HF else "mlx")
    return tokenizer


def _write_expected_files(folder: Path, entries: Mapping[str, object], tokenizer: Tokenizer) -> None:
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


def write_files(folder: Path, files: Files) -> None:
    """Copy or write files into a folder."""
    for name, content in files.items():
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            shutil.copyfile(content, folder / name)


def checked_tokenizer(folder: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer in a folder. One that cannot be opened is refused, before the weights are written."""
    try:
        return load_tokenizer(folder, n_embeddings=vocab_size)
    except ModelError as error:
        message = str(error).replace(str(folder), "the source")
        raise ModelError(f"{message}; give another tokenizer with --vocab") from None


def check_space(folder: Path, target: Path, n_bytes: int) -> None:
    """Raise MlxgenError if the disk has no room for the model."""
    free = shutil.disk_usage(folder).free
    if free < n_bytes + SPARE_BYTES:
        raise MlxgenError(
            f"{target}: not enough space: the model takes {n_bytes / 1e9:.2f} GB and {free / 1e9:.2f} GB are free; "
            "choose another disk with --output"
        )


def origin_of(checkpoint: Checkpoint) -> Origin:
    """What the folder's record says."""
    path = checkpoint.path.resolve()
    source = checkpoint.repo or (BUNDLED if path == BUNDLED_FOLDER.resolve() else str(path))
    return Origin(checkpoint.kind, source, checkpoint.commit)


def _write_json(path: Path, entries: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(entries, indent=4) + "\n", encoding="utf-8")
