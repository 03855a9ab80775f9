"""Checkpoints in and out: finding them, reading them, and matching their tensors to the decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxgen.weights.conversion.converter import Conversion, convert
    from mlxgen.weights.hub.resolve import ALIASES, BUNDLED, resolve
    from mlxgen.weights.load import open_model

__all__ = ["ALIASES", "BUNDLED", "Conversion", "convert", "open_model", "resolve"]

_DEFINED_IN = {
    "ALIASES": "hub.resolve",
    "BUNDLED": "hub.resolve",
    "Conversion": "conversion.converter",
    "convert": "conversion.converter",
    "open_model": "load",
    "resolve": "hub.resolve",
}


def __getattr__(name: str) -> Any:
    """Import on first use: resolving a name needs no MLX, and reading a folder needs no hub client."""
    if name not in _DEFINED_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_DEFINED_IN[name]}"), name)
