"""Detecting the format of a checkpoint from its files and the names of its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mlxgen.errors import ModelError
from mlxgen.json_file import read_json
from mlxgen.lfs_pointer import check_not_pointer
from mlxgen.network.config import GPT2Config
from mlxgen.weights.files.model_folder import (
    ADAPTER_FILES,
    FLAX_WEIGHTS,
    INDEX,
    TORCH_INDEX,
    TORCH_SINGLE,
    check_model_folder,
    has_safetensors,
    has_torch_weights,
    indexed_files,
    weight_files,
)
from mlxgen.weights.files.recognition import FLAX, GGUF, LLMC, PYTORCH, TENSORFLOW, is_left_by_training, recognise_file
from mlxgen.weights.hub.converted import converted_model
from mlxgen.weights.hub.locate import resolve
from mlxgen.weights.hub.names import BUNDLED, repository_of
from mlxgen.weights.hub.no_adapter import check_not_adapter
from mlxgen.weights.sources.checkpoint import Checkpoint
from mlxgen.weights.sources.deepspeed import find_states, refuse_part
from mlxgen.weights.sources.flax import open_flax
from mlxgen.weights.sources.gguf import open_gguf
from mlxgen.weights.sources.llmc import open_llmc
from mlxgen.weights.sources.openai_release import find_checkpoint, open_release
from mlxgen.weights.sources.pytorch import read_pickle, state_dict
from mlxgen.weights.sources.safetensors import read_safetensors
from mlxgen.weights.sources.state_dict import checkpoint_from_tensors, in_known_layout

#: What opens a file that is neither safetensors nor PyTorch's, by its kind.
READERS = {TENSORFLOW: open_release, LLMC: open_llmc, GGUF: open_gguf, FLAX: open_flax}
PICKLED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def open_checkpoint(source: str, *, revision: str | None = None, config: Path | None = None) -> Checkpoint:
    """Detect what ``source`` is: a folder, a file, a hub id or an alias, which is downloaded if need be.

    config: a config.json for a file of weights without one in its folder. Raises ModelError.
    """
    path = Path(source).expanduser()
    if not path.exists():
        index = Path(f"{path}.index")  # TensorFlow's name of a checkpoint, without a suffix
        path = converted_model(source) or (index if index.is_file() else path)
    if source and path.is_file() and revision is None:
        return _open_file(path, config)
    if source and source != BUNDLED and path.is_dir() and revision is None:
        return _open_local_folder(path, config)
    folder = resolve(source, revision, pickled=True)
    checkpoint = _open_model_folder(folder, config)
    if source == BUNDLED or path.is_dir():
        return checkpoint
    return replace(checkpoint, repo=repository_of(source), commit=folder.name)


def _open_local_folder(folder: Path, config: Path | None) -> Checkpoint:
    """A model folder, or the folder of a training run with one file of weights."""
    check_not_adapter(folder)
    own = folder / "config.json"
    if not has_safetensors(folder) and not has_torch_weights(folder):
        if states := find_states(folder):
            return replace(_open_file(states, config or (own if own.is_file() else None)), folder=folder)
        if index := find_checkpoint(folder):
            return open_release(index, config)
        files = _pickled_files(folder)
        if not files and (found := sorted(folder.glob("*.gguf")) or sorted(folder.glob(FLAX_WEIGHTS))):
            return _open_file(_only(found), config)
        files = [path for path in files if path.name in ("ckpt.pt", "model.pt", "last.ckpt")] or files
        if files and (config or not own.is_file() or isinstance(read_json(own).get("model"), dict)):
            return _open_file(_only(files), config)
    if config is None or not any(folder.iterdir()):
        check_model_folder(folder)
    return _open_model_folder(folder, config)


def _open_model_folder(folder: Path, config: Path | None) -> Checkpoint:
    """A folder as transformers or mlx-lm saves it."""
    config = config or folder / "config.json"
    entries = read_json(config)
    kind = "model folder"
    if has_safetensors(folder) or (folder / INDEX).is_file():
        tensors = read_safetensors(weight_files(folder))
    elif files := _torch_files(folder):
        kind = "model folder with PyTorch weights"
        try:
            GPT2Config.from_dict(entries)  # another architecture is refused before its weights are read
        except ModelError as error:
            raise ModelError(f"{config}: {error}") from None
        tensors = {}
        for file in files:
            tensors |= state_dict(read_pickle(file), file)
    elif (folder / FLAX_WEIGHTS).is_file():
        return open_flax(folder / FLAX_WEIGHTS, config)
    else:
        weight_files(folder)  # says what is missing
        raise ModelError(f"{folder}: has no weights")
    return Checkpoint(kind, entries, in_known_layout(tensors), folder, folder)


def _open_file(path: Path, config: Path | None) -> Checkpoint:
    """One file of weights, in any format that is read."""
    if path.name in ADAPTER_FILES:
        check_not_adapter(path.parent)
    check_not_pointer(path)
    if path.suffix == ".json":
        raise ModelError(f"{path}: is a JSON file; give the folder that contains it, or the file of weights")
    kind = recognise_file(path)
    if kind is not None and not kind.opened_by_convert:
        raise ModelError(f"{path}: is {kind.what}, which mlxgen does not read; {kind.advice_for(path)}")
    if kind is not None and kind.what in READERS:
        return READERS[kind.what](path, config)
    refuse_part(path)
    if path.suffix == ".safetensors":
        if config is None and path.name.startswith("model") and (path.parent / "config.json").is_file():
            return _open_model_folder(path.parent, None)
        return checkpoint_from_tensors(None, read_safetensors([path]), path, config)
    content = read_pickle(path)
    return checkpoint_from_tensors(content, state_dict(content, path), path, config)


def _torch_files(folder: Path) -> list[Path]:
    if (folder / TORCH_SINGLE).is_file():
        return [folder / TORCH_SINGLE]
    if (folder / TORCH_INDEX).is_file():
        return indexed_files(folder, TORCH_INDEX)
    if found := sorted(folder.glob("pytorch_model*.bin")):
        return found
    others = [path for path in _pickled_files(folder) if (kind := recognise_file(path)) is None or kind.what == PYTORCH]
    return [_only(others)] if others else []


def _pickled_files(folder: Path) -> list[Path]:
    """Files that have the suffix of PyTorch's, and are not those of another program."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.suffix in PICKLED_SUFFIXES and not is_left_by_training(path) and path.is_file():
            kind = recognise_file(path)
            if kind is None or kind.opened_by_convert:
                found.append(path)
    return found


def _only(files: Sequence[Path]) -> Path:
    """The single file in the list. Raises ModelError where there are several."""
    if len(files) > 1:
        names = f"{files[0].name}, {files[1].name}" + (", …" if len(files) > 2 else "")
        raise ModelError(f"{files[0].parent}: contains several files of weights ({names}); give the path of one")
    return files[0]
