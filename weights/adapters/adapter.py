"""An adapter's folder: PEFT's or mlx-lm's, its settings and its lazy tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxgen.errors import ModelError, reason_of
from mlxgen.json_file import read_json
from mlxgen.lfs_pointer import check_not_pointer
from mlxgen.reading import reading
from mlxgen.regular_file import open_regular
from mlxgen.weights.adapters import mlx_lm, peft
from mlxgen.weights.files.model_folder import (
    ADAPTER_CONFIG,
    MLX_ADAPTER,
    PEFT_ADAPTER,
    PEFT_ADAPTER_TORCH,
    adapter_base,
    inner_adapters,
)
from mlxgen.weights.hub.locate import resolve_adapter
from mlxgen.weights.sources.checkpoint import LazyTensor
from mlxgen.weights.sources.pytorch import read_pickle, state_dict
from mlxgen.weights.sources.safetensors import read_safetensors


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that is not merged yet. Made by `open_adapter`."""

    name: str  # as it was asked for
    folder: Path
    file: Path  # of its tensors
    settings: peft.Settings | mlx_lm.Settings
    tensors: Mapping[str, LazyTensor]
    base: str  # the model that it was trained on, "" if its config does not say

    @property
    def kind(self) -> str:
        """What it is, in words."""
        if isinstance(self.settings, peft.Settings):
            return f"{'DoRA' if self.settings.dora else 'LoRA'} of PEFT"
        return {"lora": "LoRA", "dora": "DoRA", "full": "full fine-tune"}[self.settings.kind] + " of mlx-lm"

    def digest(self) -> str:
        """A hash of its files: 16 hexadecimal digits."""
        digest = hashlib.blake2b(digest_size=8)
        for file in (self.folder / ADAPTER_CONFIG, self.file):
            try:
                with open_regular(file) as stream:
                    while part := stream.read(1 << 20):
                        digest.update(part)
            except OSError as error:
                raise ModelError(f"{file}: cannot be read ({reason_of(error)})") from None
        return digest.hexdigest()


def open_adapter(name: str | Path) -> Adapter:
    """Open the adapter called ``name``: a folder, or a hub id, which is downloaded if need be. Raises ModelError."""
    folder = resolve_adapter(str(name))
    with reading(folder):
        path = folder / ADAPTER_CONFIG
        if not path.is_file():
            raise ModelError(f"{folder}: has no {ADAPTER_CONFIG}, so it is not an adapter{_found_instead(folder)}")
        entries = read_json(path)
        try:
            settings = _read_settings(entries)
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from None
        file = _weights_file(folder, isinstance(settings, peft.Settings))
        tensors = _read_tensors(file)
    return Adapter(str(name), folder, file, settings, tensors, adapter_base(folder))


def _read_settings(entries: Mapping[str, Any]) -> peft.Settings | mlx_lm.Settings:
    if "peft_type" in entries:
        return peft.read_settings(entries)
    if any(name in entries for name in ("fine_tune_type", "lora_parameters")):
        return mlx_lm.read_settings(entries)
    raise ModelError("is neither PEFT's (peft_type) nor mlx-lm's (fine_tune_type, lora_parameters)")


def _weights_file(folder: Path, of_peft: bool) -> Path:
    names = (PEFT_ADAPTER, PEFT_ADAPTER_TORCH) if of_peft else (MLX_ADAPTER,)
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    if file is None:
        raise ModelError(f"{folder}: has no {' or '.join(names)}, which holds an adapter's weights")
    check_not_pointer(file)
    return file


def _read_tensors(file: Path) -> dict[str, LazyTensor]:
    if file.suffix == ".safetensors":
        return read_safetensors([file])
    return state_dict(read_pickle(file), file)


def _found_instead(folder: Path) -> str:
    """What the folder has instead, and what to do, for the end of a message."""
    if (folder / "config.json").is_file():
        return "; it is a whole model, which opens by itself (-m)"
    if inner := inner_adapters(folder):
        return f"; give one of the adapters in it, such as {inner[-1]}"
    return ""
