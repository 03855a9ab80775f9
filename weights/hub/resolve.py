"""From a model's name to its folder on this machine: the bundled one, a local one, or the hub's."""

from __future__ import annotations

import difflib
import fnmatch
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlxgen.errors import ModelError, OptionError
from mlxgen.json_file import read_json
from mlxgen.network.config import read_config
from mlxgen.weights.files.headers import INDEX, SINGLE, weight_files
from mlxgen.weights.hub.download import fetch_weights

BUNDLED = "fairy-tales"
BUNDLED_FOLDER = Path(__file__).parent.parent / "fairy_tales"

ALIASES = {
    **{name: f"openai-community/{name}" for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")},
    "distilgpt2": "distilbert/distilgpt2",
    **{f"dialogpt-{size}": f"microsoft/DialoGPT-{size}" for size in ("small", "medium", "large")},
    **{
        f"cerebras-{size.lower()}": f"cerebras/Cerebras-GPT-{size}"
        for size in ("111M", "256M", "590M", "1.3B", "2.7B", "6.7B", "13B")
    },
    "protgpt2": "nferruz/ProtGPT2",
}

#: Files beside the weights that a model can need; only those at the top of a repository count.
SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "*.model",  # sentencepiece
)
SHARDS = "model-*-of-*.safetensors"
CARD = ("README.md", "LICENSE*")  # where a converted model's licence comes from
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin")
ADAPTER_CONFIG = "adapter_config.json"


def resolve(name: str, revision: str | None = None, *, pickled: bool = False) -> Path:
    """The folder of the model called ``name``, downloaded from the hub if need be.

    revision: a branch, tag or commit on the hub. pickled: PyTorch's .bin files will do where there is no
    safetensors file (for converting; a model is never opened from them). Raises ModelError, or OptionError for
    a revision of something that has none.
    """
    name = str(name)
    folder = BUNDLED_FOLDER if name == BUNDLED else Path(name).expanduser()
    if name == BUNDLED or (name and folder.exists()):
        if revision is not None:
            raise OptionError(f"revision {revision!r} is for models on the hub; {name} is a folder on this machine")
        check_folder(folder)
        return folder
    if not name.strip():
        raise ModelError(f"an empty name: give {BUNDLED}, a folder, an alias such as gpt2, or a hub id owner/name")
    if name.startswith(("/", ".", "~")) or name.endswith("/") or "\\" in name or name.count("/") > 1:
        raise ModelError(f"{name}: there is no such folder")
    repo = ALIASES.get(name.lower(), name)
    if "/" not in repo:
        raise ModelError(f"{name}: not a folder here, and not a known name{_near(name)}; a hub id is owner/name")
    return _fetch(repo, revision, pickled)


def check_folder(folder: Path) -> None:
    """Say what a local folder is when it is not a model. Raises ModelError."""
    if not folder.exists():
        raise ModelError(f"{folder}: there is no such folder")
    if not folder.is_dir():
        raise ModelError(f"{folder}: a file; give the folder that holds the model")
    if not (folder / "config.json").is_file() or (folder / ADAPTER_CONFIG).is_file():
        if (folder / ADAPTER_CONFIG).is_file() and not any(folder.glob("model*.safetensors")):
            raise ModelError(
                f"{folder}: a LoRA adapter, not a whole model; fuse it into {_adapter_base(folder)} "
                "(`mlx_lm fuse`) and open the result"
            )
        if not any(folder.iterdir()):
            raise ModelError(f"{folder}: an empty folder; a model has config.json, weights and a tokenizer")
        if not (folder / "config.json").is_file():
            raise ModelError(f"{folder}: has no config.json, so it is not a model folder")


def wanted_files(files: list[str], *, pickled: bool = False) -> list[str]:
    """Of a repository's files, those that opening the model needs: safetensors before PyTorch's .bin.

    pickled: for converting, see `resolve`.
    """
    small = [file for file in files if _matches(file, SMALL_FILES + CARD if pickled else SMALL_FILES)]
    if SINGLE in files:
        return [*small, SINGLE]
    if INDEX in files:
        return [*small, INDEX, *(file for file in files if _matches(file, (SHARDS,)))]
    if pickled:
        return small + [file for file in files if _matches(file, PICKLED)]
    return small


def _matches(file: str, patterns: tuple[str, ...]) -> bool:
    return "/" not in file and any(fnmatch.fnmatchcase(file, pattern) for pattern in patterns)


def _fetch(repo: str, revision: str | None, pickled: bool) -> Path:
    """The hub's files in huggingface_hub's cache; what is there already is not downloaded again."""
    import huggingface_hub
    from huggingface_hub import constants, errors

    at = f" (revision {revision})" if revision else ""
    try:
        if constants.HF_HUB_OFFLINE:
            raise errors.OfflineModeIsEnabled()
        listing = huggingface_hub.HfApi(library_name="mlxgen").model_info(
            repo, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )
        all_files = [file.rfilename for file in listing.siblings or []]
        files = wanted_files(all_files, pickled=pickled)
        _check_listing(repo + at, files, all_files)
    except (errors.HFValidationError, errors.RevisionNotFoundError) as error:
        raise ModelError(_explain(repo, revision, error)) from None
    except ModelError:
        raise
    except Exception as error:  # no network, no access, the hub is down: what is cached will do
        folder = _cached(repo, revision, pickled)
        if folder is None:
            raise ModelError(_explain(repo, revision, error)) from None
        return folder
    try:
        with _quiet_log(), _progress_bars():
            # The config first: a model that cannot be opened is refused before its weights are downloaded.
            read_config(_snapshot(repo, revision, ["config.json"]))
            for file in files:
                if file.endswith((".safetensors", ".bin")) and listing.sha:
                    fetch_weights(repo, listing.sha, file)
            return _snapshot(repo, revision, files)
    except ModelError as error:
        raise ModelError(f"{repo}{at}: {error}") from None
    except Exception as error:
        raise ModelError(
            f"{repo}{at}: the download broke off ({_line(error)}); run it again, it goes on where it stopped"
        ) from None


def _snapshot(repo: str, revision: str | None, files: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    patterns = [file.replace("[", "[[]") for file in files]
    return Path(snapshot_download(repo, revision=revision, allow_patterns=patterns, library_name="mlxgen"))


def _check_listing(repo: str, files: list[str], all_files: list[str]) -> None:
    """Refuse a repository that does not hold what is needed, before anything is downloaded."""
    if "config.json" not in files:
        kind = "holds a LoRA adapter, not a whole model" if ADAPTER_CONFIG in all_files else "has no config.json"
        raise ModelError(f"{repo}: {kind}, so mlxgen cannot open it")
    if not any(file.endswith((".safetensors", ".bin")) for file in files):
        if any(_matches(file, PICKLED) for file in all_files):
            raise ModelError(
                f"{repo}: has PyTorch weights only; `mlxgen convert {repo.split()[0]}` makes a folder "
                'from them that mlxgen opens (it needs pip install "mlxgen[torch]")'
            )
        raise ModelError(f"{repo}: has no weights that mlxgen reads ({SINGLE}, or shards with {INDEX})")


def _cached(repo: str, revision: str | None, pickled: bool) -> Path | None:
    """The folder of an earlier download, or None. Raises ModelError for a download that never finished."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo, "config.json", revision=revision)
    if not isinstance(found, str):
        return None
    folder = Path(found).parent
    if pickled and any(folder.glob("pytorch_model*.bin")):
        return folder
    try:
        weight_files(folder)
    except ModelError:
        raise ModelError(
            f"{repo}: only a part of it is on this machine, and the hub is out of reach; "
            "run it again when there is a network"
        ) from None
    return folder


def _explain(repo: str, revision: str | None, error: Exception) -> str:
    """One line for why the hub did not give the model: the cause, and the way out."""
    from huggingface_hub import constants, errors

    login = "log in with `hf auth login` or set HF_TOKEN"
    page = f"{constants.ENDPOINT}/{repo}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.HFValidationError):
        return f"{repo}: not a name that a model on the hub can have (owner/name)"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{repo}: has no revision {revision!r}; its branches and tags are listed at {page}/tree/main"
    if isinstance(error, errors.GatedRepoError):
        return f"{repo}: gated; accept its terms at {page}, then {login}"
    if isinstance(error, errors.RepositoryNotFoundError):
        where = f"no folder here, and no such model at {constants.ENDPOINT}"
        return f"{repo}: {where}{_near(repo)}; if it is private, {login}"
    if status in (401, 403):
        return f"{repo}: the hub refuses access ({status}); {login}"
    if status == 429:
        return f"{repo}: the hub asks to wait (429, too many requests); try again later, or {login}"
    if status is not None:
        return f"{repo}: the hub answered with error {status} and nothing is cached; try again later"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return (
            f"{repo}: not on this machine, and HF_HUB_OFFLINE keeps the hub off; unset it and run once with "
            f"a network, or use the bundled {BUNDLED}"
        )
    return (
        f"{repo}: not on this machine, and {constants.ENDPOINT} cannot be reached ({_line(error)}); check the "
        f"network or proxy, or use the bundled {BUNDLED}"
    )


def _near(name: str) -> str:
    """A guess at what was meant."""
    near = difflib.get_close_matches(name.rpartition("/")[2].lower(), [BUNDLED, *ALIASES], n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _adapter_base(folder: Path) -> str:
    """The model that an adapter was trained on, from PEFT's or mlx-lm's adapter_config.json."""
    try:
        entries: dict[str, Any] = read_json(folder / ADAPTER_CONFIG)
    except ModelError:
        entries = {}
    base = entries.get("base_model_name_or_path") or entries.get("model")
    return base if isinstance(base, str) and base.isprintable() else "the model it was trained on"


def _line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]


@contextmanager
def _quiet_log() -> Iterator[None]:
    """Without huggingface_hub's warnings: it tries a broken download again by itself, and the last failure is told."""
    import logging

    from huggingface_hub.utils import logging as hub_logging

    before = hub_logging.get_verbosity()
    hub_logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        hub_logging.set_verbosity(before)


@contextmanager
def _progress_bars() -> Iterator[None]:
    """huggingface_hub's progress bars: on a terminal, and nowhere else."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if sys.stderr.isatty() or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
