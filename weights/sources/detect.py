"""A checkpoint of any origin, told apart by looking: what its tensors are called, and how to read each one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxgen.errors import ModelError
from mlxgen.json_file import read_json
from mlxgen.weights.files.headers import INDEX, SINGLE, TORCH_INDEX, read_header, shards, weight_files
from mlxgen.weights.hub.resolve import ALIASES, BUNDLED, check_folder, resolve
from mlxgen.weights.sources.record import Checkpoint, LazyTensor

if TYPE_CHECKING:
    import mlx.core as mx

PICKLED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
FOREIGN = {".h5": "TensorFlow's", ".msgpack": "Flax's", ".onnx": "ONNX's", ".gguf": "llama.cpp's", ".npz": "NumPy's"}
#: Files that training leaves beside the weights.
NOT_WEIGHTS = ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "optimizer.bin", "meta.pkl")


def open_checkpoint(source: str, *, revision: str | None = None, config: Path | None = None) -> Checkpoint:
    """Find out what ``source`` is: a folder, a file, a hub id or an alias; download it if need be.

    config: a config.json for a file of weights that has none beside it. Raises ModelError.
    """
    path = Path(source).expanduser()
    if source and path.is_file() and revision is None:
        return _file(path, config)
    if source and source != BUNDLED and path.is_dir() and revision is None:
        return _local_folder(path, config)
    folder = resolve(source, revision, pickled=True)
    found = _folder(folder, config)
    if source == BUNDLED or path.is_dir():
        return found
    return replace(found, repo=ALIASES.get(source.lower(), source), commit=folder.name)


def _local_folder(folder: Path, config: Path | None) -> Checkpoint:
    from mlxgen.weights.sources.openai_release import refuse_release

    refuse_release(folder)
    if not any(folder.glob("model*.safetensors")) and not any(folder.glob("pytorch_model*.bin")):
        files = [path for path in sorted(folder.iterdir()) if _is_pickled(path)]
        whole = [path for path in files if path.name in ("ckpt.pt", "model.pt")] or files
        beside = folder / "config.json"
        if whole and (config or not beside.is_file() or isinstance(read_json(beside).get("model"), dict)):
            if len(whole) > 1:
                raise ModelError(f"{folder}: holds {whole[0].name}, {whole[1].name}, …; name the one to convert")
            return _file(whole[0], config)
    if config is None or not any(folder.iterdir()):
        check_folder(folder)
    return _folder(folder, config)


def _is_pickled(path: Path) -> bool:
    return path.suffix in PICKLED_SUFFIXES and path.name not in NOT_WEIGHTS and path.is_file()


def _folder(folder: Path, config: Path | None) -> Checkpoint:
    """A folder as transformers or mlx-lm saves it."""
    from mlxgen.weights.sources.state_dict import plain_names

    entries = read_json(config or folder / "config.json")
    kind = "model folder"
    if (folder / SINGLE).is_file() or (folder / INDEX).is_file() or any(folder.glob("model*.safetensors")):
        tensors = _from_safetensors(folder, weight_files(folder))
    elif files := _torch_files(folder):
        from mlxgen.weights.sources.pytorch import read_pickle, state_dict

        kind = "model folder with PyTorch weights"
        tensors = {}
        _check_kind(entries, folder)
        for file in files:
            tensors |= state_dict(read_pickle(file), file)
    else:
        weight_files(folder)  # says what is missing
        raise ModelError(f"{folder}: has no weights")
    return Checkpoint(kind, entries, plain_names(tensors), folder, folder)


def _check_kind(entries: Mapping[str, Any], folder: Path) -> None:
    """Refuse another architecture before its weights are read."""
    from mlxgen.network.config import GPT2Config

    try:
        GPT2Config.from_dict(entries)
    except ModelError as error:
        raise ModelError(f"{folder / 'config.json'}: {error}") from None


def _torch_files(folder: Path) -> list[Path]:
    single = folder / "pytorch_model.bin"
    if single.is_file():
        return [single]
    if (folder / TORCH_INDEX).is_file():
        return shards(folder, TORCH_INDEX, ".bin")
    if found := sorted(folder.glob("pytorch_model*.bin")):
        return found
    others = [path for path in sorted(folder.iterdir()) if _is_pickled(path)]
    if len(others) > 1:
        raise ModelError(f"{folder}: holds {others[0].name}, {others[1].name}, …; name the one to convert")
    return others


def _file(path: Path, config: Path | None) -> Checkpoint:
    """One file of weights: nanoGPT's, minGPT's, or a state dict."""
    from mlxgen.weights.sources.state_dict import checkpoint_of

    if path.suffix in FOREIGN:
        raise ModelError(
            f"{path}: {FOREIGN[path.suffix]} format, which mlxgen does not read; "
            "give the model's safetensors or PyTorch weights"
        )
    if path.suffix == ".safetensors":
        if config is None and path.name.startswith("model") and (path.parent / "config.json").is_file():
            return _folder(path.parent, None)
        return checkpoint_of(None, _from_safetensors(path.parent, [path]), path, config)
    from mlxgen.weights.sources.pytorch import read_pickle, state_dict

    content = read_pickle(path)
    return checkpoint_of(content, state_dict(content, path), path, config)


def _from_safetensors(folder: Path, files: list[Path]) -> dict[str, LazyTensor]:
    tensors: dict[str, LazyTensor] = {}
    for file in files:
        for name, stored in read_header(file).items():
            if name in tensors:
                raise ModelError(f"{folder}: {name} is in both {tensors[name].stored.file.name} and {file.name}")
            tensors[name] = LazyTensor(stored, _reader(file, name))
    return tensors


def _reader(file: Path, name: str) -> Callable[[], mx.array]:
    def read() -> mx.array:
        from mlxgen.weights.load import load_file

        return load_file(file)[name]  # lazy: only this one is read, and nothing keeps it afterwards

    return read
