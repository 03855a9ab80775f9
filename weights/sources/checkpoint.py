"""What every source of weights is reduced to: lazy tensors with names, and what is known about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxgen.weights.files.headers import StoredTensor
from mlxgen.weights.layouts import ParameterSource


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A tensor that is not read yet: its type, shape and file, and how to read it."""

    stored: StoredTensor
    read: Callable[[], mx.array]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a source contains."""

    kind: str  # in words: "nanoGPT checkpoint"
    entries: Mapping[str, Any]  # of a config.json
    tensors: Mapping[str, LazyTensor]  # in a layout that layouts.match knows
    folder: Path  # where its tokenizer and its card are
    path: Path  # what errors name
    settings: str | None = "config.json"  # where the entries are from, None if from the tensors alone
    dataset: str | None = None  # the name of nanoGPT's data folder
    repo: str | None = None  # on the hub
    commit: str | None = None
    card: Mapping[str, Any] | None = None  # the header of its card, where the weights' file has it
    activation_assumed: bool = False  # a state dict does not record it
    # Makes the tokenizer files of a tokenizer that is inside the weights' file.
    tokenizer: Callable[[], Mapping[str, bytes]] | None = None

    @property
    def stored(self) -> dict[str, StoredTensor]:
        return {name: tensor.stored for name, tensor in self.tensors.items()}

    def read(self, source: ParameterSource) -> mx.array:
        """The tensor that a parameter comes from."""
        return self.tensors[source.name].read()
