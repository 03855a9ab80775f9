"""The models on this machine: bundled, converted, and in the hub's cache."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from mlxgen.errors import MlxgenError, ModelError, reason_of
from mlxgen.network.config import GPT2Config, read_config
from mlxgen.weights.files.model_folder import has_safetensors, has_torch_weights
from mlxgen.weights.files.origin import Origin, read_origin
from mlxgen.weights.files.replace_folder import foreign_content
from mlxgen.weights.hub.converted import converted_folder, converted_model
from mlxgen.weights.hub.names import ALIASES, BUNDLED, BUNDLED_FOLDER, repository_of, suggestion


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that can be opened, or at least converted, without a network."""

    name: str  # what mlxgen.load takes
    kind: str  # "bundled", "converted" or "cached"
    path: Path
    n_bytes: int  # on disk
    config: GPT2Config
    pickled: bool  # it has only PyTorch weights, and must be converted
    origin: Origin | None = None  # what a converted model was made from, where its folder says it

    @property
    def aliases(self) -> list[str]:
        return [alias for alias, repo in ALIASES.items() if repo == self.name]


def list_local_models() -> list[LocalModel]:
    """Every GPT-2 on this machine. Other kinds of models in the hub's cache are skipped."""
    bundled = [_in_folder(BUNDLED, "bundled", BUNDLED_FOLDER)]
    place = converted_folder()
    folders = sorted(path for path in place.iterdir() if path.is_dir()) if place.is_dir() else []
    converted = [
        _in_folder(folder.name if converted_model(folder.name) else str(folder), "converted", folder)
        for folder in folders
        if not folder.name.startswith(".")
    ]
    return [model for model in (*bundled, *converted, *_cached()) if model is not None]


def remove_model(name: str) -> Path:
    """Remove the converted model called ``name``; returns its folder. Raises MlxgenError for any other model."""
    found = {model.name: model for model in list_local_models()}.get(name)
    if found is not None and found.kind == "converted":
        if foreign := foreign_content(found.path):
            raise MlxgenError(f"{found.path}: contains more than a model ({foreign}), so it is not removed")
        try:
            shutil.rmtree(found.path)
        except OSError as error:
            raise MlxgenError(f"{found.path}: could not be removed ({reason_of(error)})") from None
        return found.path
    if name == BUNDLED:
        raise ModelError(f"{name}: is the bundled model, which is not removed")
    repo = repository_of(name)
    if any(model.name == repo for model in list_local_models()):
        raise ModelError(f"{name}: is in the hub's cache; remove it with `hf cache rm model/{repo}`")
    raise ModelError(f"{name}: no such converted model{suggestion(name)}; `mlxgen models` lists them")


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
    origin = read_origin(folder) if kind == "converted" else None
    return LocalModel(name, kind, folder, n_bytes, config, not openable, origin)


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
