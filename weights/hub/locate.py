"""From a model's name to its folder on this machine: the bundled one, a local one, a converted one, or the hub's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlxgen.errors import ModelError, OptionError
from mlxgen.reading import reading
from mlxgen.weights.files.model_folder import check_model_folder
from mlxgen.weights.hub.converted import converted_model
from mlxgen.weights.hub.names import BUNDLED, BUNDLED_FOLDER, repository_of, suggestion
from mlxgen.weights.hub.no_adapter import check_not_adapter


def resolve(name: str, revision: str | None = None, *, pickled: bool = False, weights: bool = True) -> Path:
    """The folder of the model called ``name``, which is downloaded from the hub if need be.

    revision: a branch, tag or commit on the hub. pickled: accept PyTorch's .bin files where there are no safetensors
    (for converting; a model is never opened from them). weights: whether they are needed, or only the config and the
    tokenizer. Raises ModelError, or OptionError for a revision of a model that is not on the hub.
    """
    name = str(name)
    folder = BUNDLED_FOLDER if name == BUNDLED else Path(name).expanduser()
    if name and not folder.exists():
        folder = converted_model(name) or folder
    if name and folder.exists():
        if revision is not None:
            raise OptionError(f"revision {revision!r} is only for models on the hub, and {name} is a local folder")
        with naming_hidden_model(name), reading(folder):
            check_not_adapter(folder)
            check_model_folder(folder)
        return folder
    if name and (index := Path(f"{folder}.index")).is_file():  # TensorFlow names a checkpoint without this suffix
        check_model_folder(index)
    if not name.strip():
        raise ModelError(
            f"the model's name is empty; give {BUNDLED}, a folder, an alias such as gpt2, or a hub id (owner/name)"
        )
    if name.startswith(("/", ".", "~")) or name.endswith("/") or "\\" in name or name.count("/") > 1:
        raise ModelError(f"{name}: no such folder")
    repo = repository_of(name)
    if "/" not in repo:
        raise ModelError(
            f"{name}: neither a local folder nor a known alias{suggestion(name)}; a hub id has the form owner/name"
        )
    from mlxgen.weights.hub.repository import download_model  # a local model needs none of it

    return download_model(repo, revision, pickled=pickled, weights=weights)


def resolve_adapter(name: str) -> Path:
    """The folder of the adapter called ``name``: a folder, or a hub id, which is downloaded if need be.

    Raises ModelError.
    """
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return folder
    if name and folder.exists():
        raise ModelError(f"{name}: is a file; give the folder of the adapter")
    if not name.strip() or name.count("/") != 1 or name.startswith(("/", ".", "~")) or name.endswith("/"):
        raise ModelError(f"{name or repr(name)}: no such folder; an adapter is a folder or a hub id (owner/name)")
    from mlxgen.weights.hub.repository import download_adapter

    return download_adapter(name)


def source_of(name: str, revision: str | None, folder: Path) -> str:
    """What other programs open a model by, once `resolve` has found its folder: a hub id, or the folder itself."""
    repo = repository_of(str(name))
    on_hub = "/" in repo and revision is None and not Path(name).expanduser().exists()
    return repo if on_hub else str(folder.absolute())


@contextmanager
def naming_hidden_model(name: str) -> Iterator[None]:
    """Add to a ModelError that ``name`` is a local folder and hides a model of that name on the hub, if so."""
    try:
        yield
    except ModelError as error:
        repo = repository_of(name)
        hides = repo != name and Path(name).is_dir()
        hint = f"; the local folder {name} hides {repo} on the hub, which opens by that name" if hides else ""
        raise ModelError(f"{error}{hint}") from None
