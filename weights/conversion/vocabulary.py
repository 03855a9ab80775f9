"""The tokenizer files that go with a checkpoint: its own, GPT-2's, or a vocabulary of single characters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxgen.errors import ModelError
from mlxgen.json_file import read_json
from mlxgen.weights.hub.resolve import ALIASES, SMALL_FILES
from mlxgen.weights.sources.record import Checkpoint

GPT2_SIZES = (50257, 50304)  # 50,304 is 50,257 rounded up to a multiple of 64, as nanoGPT keeps it
CONFIGS = ("config.json", "generation_config.json")
WHOLE = ("tokenizer.json", "vocab.txt", "*.model")
MAX_BYTES = 64 << 20

#: File name -> the file to copy, or what to write.
Files = dict[str, Path | bytes]


def tokenizer_files(checkpoint: Checkpoint, vocab_size: int, vocab: str | None = None) -> tuple[Files, str]:
    """The files to put beside the weights, and where they are from, in words.

    vocab: a vocabulary as JSON, a tokenizer.json, a folder with a tokenizer, or a hub id. Without it the source's own
    files are taken; then nanoGPT's meta.json or meta.pkl; then GPT-2's, where the size fits. Raises ModelError.
    """
    if vocab is not None:
        return _given(vocab, vocab_size)
    if files := _from_folder(checkpoint.folder):
        return files, "the source's"
    for file in _meta_files(checkpoint):
        return _characters(file, vocab_size), str(file)
    if vocab_size in GPT2_SIZES:
        return _from_hub("gpt2", f"{checkpoint.where}: comes without a tokenizer, and GPT-2's cannot be had"), "GPT-2's"
    raise ModelError(
        f"{checkpoint.where}: comes without a tokenizer for its {vocab_size} tokens; name one with --vocab: "
        'a JSON file {"character": id, …}, a tokenizer.json, a folder or a hub id'
    )


def _given(vocab: str, vocab_size: int) -> tuple[Files, str]:
    path = Path(vocab).expanduser()
    if path.is_dir():
        files = _from_folder(path)
        if not files:
            raise ModelError(f"{path}: holds no tokenizer (tokenizer.json, or vocab.json with merges.txt)")
        return files, str(path)
    if path.is_file():
        return _characters(path, vocab_size), str(path)
    if "/" not in vocab and vocab.lower() not in ALIASES:
        raise ModelError(f"{vocab}: no such file or folder, and not a hub id (owner/name)")
    return _from_hub(vocab, f"{vocab}: its tokenizer cannot be had"), vocab


def _from_folder(folder: Path) -> Files:
    """A folder's tokenizer files, also under the names of OpenAI's release. {} where there is no tokenizer."""
    files: Files = {}
    for pattern in SMALL_FILES:
        if pattern not in CONFIGS:
            files |= {path.name: path for path in sorted(folder.glob(pattern)) if path.is_file()}
    if (folder / "encoder.json").is_file() and (folder / "vocab.bpe").is_file():
        files |= {"vocab.json": folder / "encoder.json", "merges.txt": folder / "vocab.bpe"}
    whole = any(any(folder.glob(pattern)) for pattern in WHOLE)
    return files if whole or {"vocab.json", "merges.txt"} <= files.keys() else {}


def _meta_files(checkpoint: Checkpoint) -> list[Path]:
    """Where nanoGPT keeps a vocabulary: beside the checkpoint, or in data/<dataset> beside its folder."""
    folders = [checkpoint.folder]
    if checkpoint.dataset is not None:
        folders.append(checkpoint.folder.absolute().parent / "data" / checkpoint.dataset)
    found = [folder / name for folder in folders for name in ("meta.json", "meta.pkl")]
    return [file for file in found if file.is_file()]


def _from_hub(name: str, trouble: str) -> Files:
    from huggingface_hub import snapshot_download

    patterns = [pattern for pattern in SMALL_FILES if pattern not in CONFIGS]
    try:
        repo = ALIASES.get(name.lower(), name)
        folder = Path(snapshot_download(repo, allow_patterns=patterns, library_name="mlxgen"))
    except Exception as error:  # no network, no such model, no space
        reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        raise ModelError(f"{trouble} ({reason}); name a folder that holds it with --vocab") from None
    files = _from_folder(folder)
    if not files:
        raise ModelError(f"{trouble} ({repo} holds none); name a folder that holds it with --vocab")
    return files


def _characters(file: Path, vocab_size: int) -> Files:
    """tokenizer.json of a vocabulary file."""
    if file.suffix == ".pkl":
        from mlxgen.weights.sources.pytorch import read_plain_pickle

        content = read_plain_pickle(file)
    else:
        content = read_json(file, max_bytes=MAX_BYTES)
    if isinstance(content, dict) and isinstance(content.get("model"), dict) and "vocab" in content["model"]:
        return {"tokenizer.json": file}  # the tokenizers library's own format
    vocabulary = _vocabulary(content, file)
    if not vocabulary:
        raise ModelError(f"{file}: holds no vocabulary")
    highest = max(vocabulary.values())
    if highest >= vocab_size:
        raise ModelError(
            f"{file}: has token {highest}, and the model has only {vocab_size}: not this model's vocabulary"
        )
    return {
        "tokenizer.json": character_tokenizer(vocabulary).encode(),
        "tokenizer_config.json": json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}, indent=2
        ).encode(),
    }


def _vocabulary(content: Any, file: Path) -> dict[str, int]:
    """Character -> id, from {"stoi": {…}}, {"itos": {…}} or the mapping itself."""
    if isinstance(content, Mapping) and isinstance(content.get("stoi"), Mapping):
        content = content["stoi"]
    elif isinstance(content, Mapping) and isinstance(content.get("itos"), Mapping):
        content = {text: number for number, text in content["itos"].items()}
    if not isinstance(content, Mapping):
        raise ModelError(f'{file}: not a vocabulary, which is a JSON object {{"character": id, …}}')
    vocabulary: dict[str, int] = {}
    for text, number in content.items():
        whole = int(number) if isinstance(number, str) and number.isdecimal() else number
        if not isinstance(text, str) or len(text) != 1 or type(whole) is not int or whole < 0:
            raise ModelError(
                f"{file}: not a vocabulary of single characters ({str(text)[:20]!r}: {str(number)[:20]!r})"
            )
        vocabulary[text] = whole
    if len(set(vocabulary.values())) != len(vocabulary):
        raise ModelError(f"{file}: gives the same id to two characters")
    return vocabulary


def character_tokenizer(vocabulary: Mapping[str, int]) -> str:
    """tokenizer.json's text for one token a character. Characters it does not have are left out when encoding."""
    import tokenizers

    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=dict(vocabulary), merges=[]))
    library.decoder = tokenizers.decoders.Fuse()
    return library.to_str(pretty=True)
