"""Which tokenizer a converted model gets: its own, GPT-2's, or a vocabulary of single characters."""

from __future__ import annotations

from pathlib import Path

from mlxgen.errors import MlxgenError, ModelError, reason_of
from mlxgen.lfs_pointer import check_not_pointer
from mlxgen.text.tokenizer import load_tokenizer
from mlxgen.weights.conversion.characters import tokenizer_of
from mlxgen.weights.files.model_folder import TOKENIZER_FILES, make_a_tokenizer
from mlxgen.weights.hub.names import ALIASES, repository_of
from mlxgen.weights.hub.repository import download_tokenizer
from mlxgen.weights.local_models import list_local_models
from mlxgen.weights.sources.checkpoint import Checkpoint

GPT2_SIZES = (50257, 50304)  # nanoGPT pads 50,257 to 50,304, a multiple of 64
GPT2_TEXT, GPT2_IDS = "Hello world, 1234<|endoftext|>", [15496, 995, 11, 1105, 2682, 50256]

#: File name -> the file to copy, or the content to write.
Files = dict[str, Path | bytes]


def choose_tokenizer(checkpoint: Checkpoint, vocab_size: int, vocab: str | None = None) -> tuple[Files, str]:
    """The tokenizer files to put beside the weights, and in words where they are from.

    vocab: a vocabulary as JSON, a tokenizer.json, a folder with a tokenizer, or a hub id. Without it, the first of
    these is used: the source's own files; nanoGPT's meta.json or meta.pkl; GPT-2's, if the size fits, from the hub or
    from a model on this machine. Raises ModelError.
    """
    if vocab is not None:
        return _given(vocab, vocab_size)
    if checkpoint.tokenizer is not None:
        return {**checkpoint.tokenizer()}, "the source's"
    if files := _from_folder(checkpoint.folder):
        return files, "the source's"
    for file in _meta_files(checkpoint):
        return tokenizer_of(file, vocab_size), str(file)
    if vocab_size in GPT2_SIZES:
        return _gpt2s(f"{checkpoint.path}: has no tokenizer, and GPT-2's cannot be downloaded")
    raise ModelError(
        f"{checkpoint.path}: has no tokenizer for its {vocab_size} tokens; give one with --vocab: "
        'a JSON file {"character": id, …}, a tokenizer.json, a folder or a hub id'
    )


def _gpt2s(problem: str) -> tuple[Files, str]:
    """GPT-2's own tokenizer: the hub's, or else that of a model on this machine. problem: how an error begins."""
    try:
        return _from_hub("gpt2", problem), "GPT-2's"
    except ModelError:
        for model in list_local_models():
            if model.config.vocab_size in GPT2_SIZES and _has_gpt2s(model.path):
                return _from_folder(model.path), f"GPT-2's, from {model.name}"
        raise


def _has_gpt2s(folder: Path) -> bool:
    try:
        return load_tokenizer(folder).encode(GPT2_TEXT) == GPT2_IDS
    except MlxgenError:
        return False


def _given(vocab: str, vocab_size: int) -> tuple[Files, str]:
    """The files that --vocab names."""
    path = Path(vocab).expanduser()
    if path.is_dir():
        files = _from_folder(path)
        if not files:
            raise ModelError(f"{path}: contains no tokenizer (tokenizer.json, or vocab.json with merges.txt)")
        return files, str(path)
    if path.is_file():
        return tokenizer_of(path, vocab_size), str(path)
    if "/" not in vocab and vocab.lower() not in ALIASES:
        raise ModelError(f"{vocab}: no such file or folder, and not a hub id (owner/name)")
    return _from_hub(vocab, f"{vocab}: its tokenizer cannot be downloaded"), vocab


def _from_folder(folder: Path) -> Files:
    """A folder's tokenizer files, also under the names of OpenAI's release. {} if it has no tokenizer."""
    files = {name: folder / name for name in TOKENIZER_FILES if (folder / name).is_file()}
    if (folder / "encoder.json").is_file() and (folder / "vocab.bpe").is_file():
        files |= {"vocab.json": folder / "encoder.json", "merges.txt": folder / "vocab.bpe"}
    for file in files.values():
        check_not_pointer(file)
    return {**files} if make_a_tokenizer(files.keys()) else {}


def _meta_files(checkpoint: Checkpoint) -> list[Path]:
    """Where nanoGPT keeps a vocabulary: beside the checkpoint, or in data/<dataset> beside the checkpoint's folder."""
    folders = [checkpoint.folder]
    if checkpoint.dataset is not None:
        folders.append(checkpoint.folder.absolute().parent / "data" / checkpoint.dataset)
    found = [folder / name for folder in folders for name in ("meta.json", "meta.pkl")]
    return [file for file in found if file.is_file()]


def _from_hub(name: str, problem: str) -> Files:
    """The tokenizer files of a model on the hub. problem: how an error begins."""
    repo = repository_of(name)
    try:
        folder = download_tokenizer(repo)
    except Exception as error:  # no network, no such model, no space
        raise ModelError(f"{problem} ({reason_of(error)}); give a folder that contains it with --vocab") from None
    files = _from_folder(folder)
    if not files:
        raise ModelError(f"{problem} ({repo} has none); give a folder that contains it with --vocab")
    return files
