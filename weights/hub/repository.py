"""Downloading a model's repository into huggingface_hub's cache: which of its files are needed, and what is cached."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlxgen.errors import ModelError, reason_of
from mlxgen.network.config import read_config
from mlxgen.weights.files.model_folder import (
    ADAPTER_CONFIG,
    CARD_FILES,
    INDEX,
    SHARDS,
    SINGLE,
    SMALL_FILES,
    TORCH_WEIGHTS,
    has_torch_weights,
    torch_weights_only,
    weight_files,
)
from mlxgen.weights.hub.checksum import check_download
from mlxgen.weights.hub.client_output import client_output
from mlxgen.weights.hub.download import download_file
from mlxgen.weights.hub.explain import explain_download


def download_model(repo: str, revision: str | None, *, pickled: bool) -> Path:
    """The folder of the model ``repo`` in huggingface_hub's cache; only what is missing is downloaded.

    pickled: see `resolve`. Where the hub cannot be reached, an earlier download will do. Raises ModelError.
    """
    from huggingface_hub import errors

    try:
        listing = _listing(repo, revision)
    except (errors.HFValidationError, errors.RevisionNotFoundError) as error:
        raise ModelError(explain_download(repo, revision, error)) from None
    except Exception as error:  # no network, no access, the hub is down
        folder = _cached(repo, revision, pickled=pickled)
        if folder is None:
            raise ModelError(explain_download(repo, revision, error)) from None
        return folder
    all_files = [file.rfilename for file in listing.siblings or []]
    files = needed_files(all_files, pickled=pickled)
    where = f"{repo} (revision {revision})" if revision else repo
    _check_listing(repo, where, files, all_files)
    try:
        with client_output():
            # The config first: a model that cannot be opened is refused before its weights are downloaded.
            read_config(snapshot(repo, ["config.json"], revision))
            for file in files:
                if file.endswith((".safetensors", ".bin")) and listing.sha:
                    download_file(repo, listing.sha, file)
            return snapshot(repo, files, revision)
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from None
    except Exception as error:
        raise ModelError(
            f"{where}: the download was interrupted ({reason_of(error)}); run the command again to resume it"
        ) from None


def needed_files(files: Sequence[str], *, pickled: bool = False) -> list[str]:
    """Of a repository's files, those that opening the model needs: safetensors rather than PyTorch's .bin.

    Only files at the top of the repository count. pickled: for converting, see `resolve`.
    """
    small = [file for file in files if _matches(file, SMALL_FILES + CARD_FILES if pickled else SMALL_FILES)]
    if SINGLE in files:
        return [*small, SINGLE]
    if INDEX in files:
        return [*small, INDEX, *(file for file in files if _matches(file, (SHARDS,)))]
    if pickled:
        return small + [file for file in files if _matches(file, TORCH_WEIGHTS)]
    return small


def snapshot(repo: str, files: Sequence[str], revision: str | None = None) -> Path:
    """Download the repository's files that match the patterns ``files``; their folder. New files are checked.

    Raises ModelError for a damaged file, and the client's errors.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.file_download import repo_folder_name

    blobs = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model") / "blobs"
    known = {path.name for path in blobs.iterdir()} if blobs.is_dir() else set()
    patterns = [file.replace("[", "[[]") for file in files]
    folder = Path(snapshot_download(repo, revision=revision, allow_patterns=patterns, library_name="mlxgen"))
    for path in folder.iterdir():
        blob = path.resolve()
        if path.is_symlink() and blob.is_file() and blob.name not in known:
            try:
                check_download(blob, blob.name, path.name)
            except ModelError:
                path.unlink()
                raise
    return folder


def _matches(file: str, patterns: Sequence[str]) -> bool:
    return "/" not in file and any(fnmatch.fnmatchcase(file, pattern) for pattern in patterns)


def _listing(repo: str, revision: str | None) -> Any:
    """The hub's record of a model, with its files. Raises the client's errors."""
    import huggingface_hub
    from huggingface_hub import constants, errors

    if constants.HF_HUB_OFFLINE:
        raise errors.OfflineModeIsEnabled()
    api = huggingface_hub.HfApi(library_name="mlxgen")
    return api.model_info(repo, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)


def _check_listing(repo: str, where: str, files: Sequence[str], all_files: Sequence[str]) -> None:
    """Refuse a repository without the needed files before anything is downloaded."""
    if "config.json" not in files:
        if ADAPTER_CONFIG in all_files:
            raise ModelError(
                f"{where}: is a LoRA adapter, not a complete model; merge it into its base model with PEFT "
                "(merge_and_unload), save that with save_pretrained, and open the result"
            )
        raise ModelError(f"{where}: has no config.json, so mlxgen cannot open it")
    if not any(file.endswith((".safetensors", ".bin")) for file in files):
        if any(_matches(file, TORCH_WEIGHTS) for file in all_files):
            raise ModelError(torch_weights_only(where, repo))
        raise ModelError(f"{where}: has no weights that mlxgen can read ({SINGLE}, or shards with {INDEX})")


def _cached(repo: str, revision: str | None, *, pickled: bool) -> Path | None:
    """The folder of an earlier download, or None. Raises ModelError for an incomplete one."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo, "config.json", revision=revision)
    if not isinstance(found, str):
        return None
    folder = Path(found).parent
    if pickled and has_torch_weights(folder):
        return folder
    try:
        weight_files(folder)
    except ModelError:
        raise ModelError(
            f"{repo}: only part of the model is in the cache, and the hub cannot be reached; try again when online"
        ) from None
    return folder
