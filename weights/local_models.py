"""The models on this machine: bundled, converted, and in the hub's cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mlxgen.errors import ModelError
from mlxgen.network.config import GPT2Config, read_config
from mlxgen.weights.files.model_folder import has_safetensors, has_torch_weights
from mlxgen.weights.hub.names import ALIASES, BUNDLED, BUNDLED_FOLDER

CONVERTED_FOLDER = Path("weights")  # where `mlxgen convert` writes by default


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that can be opened, or at least converted, without a network."""

    name: str  # what mlxgen.load takes
    kind: str  # "bundled", "converted" or "cached"
    path: Path
    n_bytes: int  # on disk
    config: GPT2Config
    pickled: bool  # it has only PyTorch weights, and must be converted

    @property
    def aliases(self) -> list[str]:
        return [alias for alias, repo in ALIASES.items() if repo == self.name]


def list_local_models() -> list[LocalModel]:
    """Every GPT-2 on this machine. Other kinds of models in the hub's cache are skipped."""
    bundled = [_in_folder(BUNDLED, "bundled", BUNDLED_FOLDER)]
    folders = sorted(path for path in CONVERTED_FOLDER.iterdir() if path.is_dir()) if CONVERTED_FOLDER.is_dir() else []
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
    openable = has_safetensors(folder)
    if not openable and not has_torch_weights(folder):
        return None
    if n_bytes is None:
        n_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    return LocalModel(name, kind, folder, n_bytes, config, not openable)


def _cached() -> list[LocalModel]:
    """Of each repository in the hub's cache, the newest revision that contains a model."""
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
