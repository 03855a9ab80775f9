"""An adapter in a model's place: the model that it belongs to, and the commands that use it."""

from __future__ import annotations

import shlex
from pathlib import Path

from mlxgen.errors import ModelError, printable
from mlxgen.weights.files.model_folder import ADAPTER_CONFIG, adapter_base, has_safetensors, has_torch_weights
from mlxgen.weights.hub.converted import converted_model
from mlxgen.weights.hub.names import BUNDLED, repository_of


def check_not_adapter(folder: Path) -> None:
    """Raise ModelError if the folder holds an adapter and no model."""
    if not (folder / ADAPTER_CONFIG).is_file() or has_safetensors(folder) or has_torch_weights(folder):
        return
    base = adapter_base(folder)
    if base and not _can_be_found(base) and (folder.absolute().parent / base).is_dir():
        base = str(folder.parent / base)  # it was trained in the folder above
    raise ModelError(is_adapter(str(folder), base))


def is_adapter(name: str, base: str) -> str:
    """The message for an adapter. base: the model that it was trained on, "" if that is unknown."""
    what, model, hint = f"an adapter of {printable(base)}", shlex.quote(base), ""
    if not base:
        what, model, hint = "an adapter", "MODEL", ", where MODEL is the model that it was trained on"
    elif not _can_be_found(base):
        model, hint = "MODEL", ", where MODEL is a folder or hub id of that model, which is not here under this name"
    options = f"{model} --adapter {shlex.quote(name)}"
    return (
        f'{name}: is {what}, not a whole model; use it with `mlxgen generate -m {options} "Once upon a time"`, '
        f"or merge it with `mlxgen convert {options}`{hint}"
    )


def _can_be_found(base: str) -> bool:
    """Whether the name is that of a model on this machine, or can be one on the hub."""
    if base == BUNDLED or Path(base).expanduser().is_dir() or converted_model(base) is not None:
        return True
    return repository_of(base).count("/") == 1 and not base.startswith(("/", ".", "~"))
