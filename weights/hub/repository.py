"""Downloading a model's repository into huggingface_hub's cache: which of its files are needed, and what is cached."""

from __future__ import annotations

import fnmatch
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from mlxgen.errors import ModelError, printable, reason_of
from mlxgen.network.config import read_config
from mlxgen.weights.files.model_folder import (
    ADAPTER_CONFIG,
    ADAPTER_FILES,
    CARD_FILES,
    FLAX_WEIGHTS,
    INDEX,
    SHARDS,
    SINGLE,
    SMALL_FILES,
    TOKENIZER_FILES,
    TORCH_WEIGHTS,
    adapter_base,
    has_torch_weights,
    torch_weights_only,
    weight_files,
)
from mlxgen.weights.hub.answers import BadAnswer, checked_hex, get_json
from mlxgen.weights.hub.client_output import client_output
from mlxgen.weights.hub.download import cache_of, download_file, remember
from mlxgen.weights.hub.explain import explain_download
from mlxgen.weights.hub.no_adapter import is_adapter

OTHER_WEIGHTS = (".index", "tf_model.h5")  # TensorFlow's


@dataclass(frozen=True, slots=True)
class Listing:
    """A revision of a repository: its commit, and the names of its files."""

    commit: str
    files: list[str]


def download_model(repo: str, revision: str | None, *, pickled: bool, weights: bool = True) -> Path:
    """The folder of the model ``repo`` in huggingface_hub's cache; only what is missing is downloaded.

    pickled, weights: see `resolve`. Where the hub cannot be reached, an earlier download will do. Raises ModelError.
    """
    from huggingface_hub import errors

    try:
        listing = _listing(repo, revision)
    except (errors.HFValidationError, errors.RevisionNotFoundError) as error:
        raise ModelError(explain_download(repo, revision, error)) from None
    except Exception as error:  # no network, no access, the hub is down
        folder = _cached(repo, revision, pickled=pickled, weights=weights)
        if folder is None:
            raise ModelError(explain_download(repo, revision, error) + _other_revisions(repo)) from None
        return folder
    files = needed_files(listing.files, pickled=pickled)
    where = f"{repo} (revision {revision})" if revision else repo
    _check_listing(repo, where, revision, files, listing)
    if not weights:
        files = [file for file in files if _matches(file, SMALL_FILES)]
    # The config first: a model that cannot be opened is refused before its weights are downloaded.
    folder = _downloaded(repo, where, revision, listing, ["config.json"])
    try:
        read_config(folder)
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from None
    return _downloaded(repo, where, revision, listing, files)


def _downloaded(repo: str, where: str, revision: str | None, listing: Listing, files: Sequence[str]) -> Path:
    """Download files of a repository; returns their folder. Raises ModelError. where: how an error begins."""
    try:
        return _download(repo, revision, listing, files)
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from None
    except BadAnswer as error:
        raise ModelError(f"{where}: the hub's answer is invalid: {reason_of(error)}; try again later") from None
    except Exception as error:
        raise ModelError(
            f"{where}: the download was interrupted ({reason_of(error)}); run the command again to resume it"
        ) from None


def download_adapter(repo: str) -> Path:
    """The folder of the adapter ``repo`` in huggingface_hub's cache; only what is missing is downloaded.

    Where the hub cannot be reached, an earlier download will do. Raises ModelError.
    """
    from huggingface_hub import try_to_load_from_cache

    try:
        listing = _listing(repo, None)
    except Exception as error:  # no network, no access, no such repository
        cached = try_to_load_from_cache(repo, ADAPTER_CONFIG) if repo.count("/") == 1 else None
        if isinstance(cached, str) and any((Path(cached).parent / name).is_file() for name in ADAPTER_FILES):
            return Path(cached).parent
        raise ModelError(explain_download(repo, None, error)) from None
    if ADAPTER_CONFIG not in listing.files:
        raise ModelError(f"{repo}: has no {ADAPTER_CONFIG}, so it is not an adapter")
    weights = [name for name in ADAPTER_FILES if name in listing.files][:1]
    tokenizer = [name for name in listing.files if _matches(name, TOKENIZER_FILES)]
    return _downloaded(repo, repo, None, listing, [ADAPTER_CONFIG, *weights, *tokenizer])


def download_tokenizer(repo: str) -> Path:
    """The folder with the tokenizer files of the model ``repo``. Raises ModelError, the client's errors and others."""
    from huggingface_hub import constants, try_to_load_from_cache

    if constants.HF_HUB_OFFLINE:
        for file in ("tokenizer.json", "vocab.json"):
            if isinstance(found := try_to_load_from_cache(repo, file), str):
                return Path(found).parent
    listing = _listing(repo, None)
    return _download(repo, None, listing, [file for file in listing.files if _matches(file, TOKENIZER_FILES)])


def _download(repo: str, revision: str | None, listing: Listing, files: Sequence[str]) -> Path:
    """Download files of a repository; returns their folder."""
    with client_output():
        for file in files:
            download_file(repo, listing.commit, file)
    remember(repo, revision, listing.commit)
    return cache_of(repo) / "snapshots" / listing.commit


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
        pickles = [file for file in files if _matches(file, TORCH_WEIGHTS)]
        return small + (pickles or [file for file in files if file == FLAX_WEIGHTS])
    return small


def _matches(file: str, patterns: Sequence[str]) -> bool:
    return "/" not in file and file.isprintable() and any(fnmatch.fnmatchcase(file, pattern) for pattern in patterns)


def _listing(repo: str, revision: str | None) -> Listing:
    """The files of a revision. Raises BadAnswer, Stalled, and the client's errors."""
    from huggingface_hub import constants, errors
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    validate_repo_id(repo)
    if constants.HF_HUB_OFFLINE:
        raise errors.OfflineModeIsEnabled()
    at = f"/revision/{quote(revision, safe='')}" if revision else ""
    entries = get_json(f"{constants.ENDPOINT}/api/models/{repo}{at}")
    try:
        files = [str(entry["rfilename"]) for entry in entries["siblings"]]
        commit = entries["sha"]
    except (TypeError, LookupError):
        raise BadAnswer("it is not a list of files") from None
    return Listing(checked_hex("commit", commit), files)


def _check_listing(repo: str, where: str, revision: str | None, files: Sequence[str], listing: Listing) -> None:
    """Refuse a repository without the needed files before anything is downloaded."""
    has_weights = any(file.endswith((".safetensors", ".bin", FLAX_WEIGHTS)) for file in files)
    if ADAPTER_CONFIG in listing.files and not ("config.json" in files and has_weights):
        base = adapter_base(_downloaded(repo, where, revision, listing, [ADAPTER_CONFIG]))
        raise ModelError(is_adapter(repo, base))
    weights = [file for file in listing.files if file.endswith((".safetensors", ".bin", ".pt", ".gguf"))]
    if weights and all(file.endswith(".gguf") for file in weights):
        raise ModelError(
            f"{where}: has only GGUF files; download one with "
            f"`hf download {repo} {shlex.quote(printable(weights[0]))}`, and convert it with `mlxgen convert FILE`"
        )
    others = [file for file in listing.files if file.endswith(OTHER_WEIGHTS)]
    if others and not weights and FLAX_WEIGHTS not in listing.files:
        folder = repo.rpartition("/")[2]
        place = shlex.quote(printable(f"{folder}/{others[0]}").rpartition("/")[0])
        raise ModelError(
            f"{where}: has only {printable(others[0])}; download it with `hf download {repo} --local-dir {folder}`, "
            f"then run `mlxgen convert {place}`"
        )
    if "config.json" not in files:
        raise ModelError(f"{where}: has no config.json, so mlxgen cannot open it")
    if not has_weights:
        if any(_matches(file, TORCH_WEIGHTS) for file in listing.files):
            raise ModelError(torch_weights_only(where, repo))
        if FLAX_WEIGHTS in listing.files:
            raise ModelError(f"{where}: has only Flax weights; convert them with `mlxgen convert {repo}`")
        raise ModelError(f"{where}: has no weights that mlxgen can read ({SINGLE}, or shards with {INDEX})")


def _other_revisions(repo: str) -> str:
    """A hint at the revisions of a model that are in the cache; "" if there are none."""
    folder = cache_of(repo)
    names = sorted(str(path.relative_to(folder / "refs")) for path in (folder / "refs").rglob("*") if path.is_file())
    names = names or sorted(path.name for path in (folder / "snapshots").glob("*/"))
    return f". The cache has another revision: {', '.join(names[:3])}" if names else ""


def _cached(repo: str, revision: str | None, *, pickled: bool, weights: bool) -> Path | None:
    """The folder of an earlier download, or None. Raises ModelError for an incomplete one."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo, "config.json", revision=revision)
    if not isinstance(found, str):
        return None
    folder = Path(found).parent
    if not weights or (pickled and (has_torch_weights(folder) or (folder / FLAX_WEIGHTS).is_file())):
        return folder
    try:
        weight_files(folder)
    except ModelError:
        raise ModelError(
            f"{repo}: only part of the model is in the cache, and the hub cannot be reached; try again when online"
        ) from None
    return folder
