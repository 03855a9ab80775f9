"""The models on this machine: bundled, converted, and in the hub's cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mlxgen.errors import ModelError
from mlxgen.network.config import GPT2Config, read_config
from mlxgen.weights.hub.resolve import ALIASES, BUNDLED, BUNDLED_FOLDER

CONVERTED = Path("weights")  # where `mlxgen convert` writes by default


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that can be opened, or (where it has PyTorch weights alone) converted, without a network."""

    name: str  # what mlxgen.load takes
    kind: str  # "bundled", "converted" or "cached"
    path: Path
    n_bytes: int  # on disk
    config: GPT2Config
    pickled: bool  # has PyTorch weights alone

    @property
    def aliases(self) -> list[str]:
        return [alias for alias, repo in ALIASES.items() if repo == self.name]


def local_models() -> list[LocalModel]:
    """Every GPT-2 that is here. Other kinds of models in the hub's cache are passed over."""
    bundled = [_in_folder(BUNDLED, "bundled", BUNDLED_FOLDER)]
    folders = sorted(path for path in CONVERTED.iterdir() if path.is_dir()) if CONVERTED.is_dir() else []
    converted = [
        _in_folder(str(folder), "converted", folder)
        for folder in folders
        if not folder.name.startswith(".") and folder.resolve() != BUNDLED_FOLDER.resolve()
    ]
    return [model for model in (*bundled, *converted, *_cached()) if model is not None]


def _in_folder(name: str, kind: str, folder: Path, n_bytes: int | None = None) -> LocalModel | None:
    try:
        config = read_config(folder)
    except ModelError:
        return None
    safetensors, pickled = any(folder.glob("model*.safetensors")), any(folder.glob("pytorch_model*.bin"))
    if not safetensors and not pickled:
        return None
    if n_bytes is None:
        n_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    return LocalModel(name, kind, folder, n_bytes, config, not safetensors)


def _cached() -> list[LocalModel]:
    """Of each repository in the hub's cache, the newest revision that holds a model."""
    from huggingface_hub import constants, errors, scan_cache_dir

    try:
        cache = scan_cache_dir(constants.HF_HUB_CACHE)
    except errors.CacheNotFound:
        return []
    models = []
    for repo in sorted(cache.repos, key=lambda repo: repo.repo_id):
        if repo.repo_type != "model":
            continue
        newest = sorted(repo.revisions, key=lambda revision: revision.last_modified, reverse=True)
        found = (_in_folder(repo.repo_id, "cached", r.snapshot_path, repo.size_on_disk) for r in newest)
        if model := next((model for model in found if model is not None), None):
            models.append(model)
    return models
