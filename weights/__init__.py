"""Checkpoints in and out: finding them by name, opening them as models, and converting them to model folders.

May import the runtime, but never mlxgen.cli.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxgen.weights.conversion.converter import convert
    from mlxgen.weights.conversion.result import Conversion
    from mlxgen.weights.hub.locate import resolve
    from mlxgen.weights.hub.names import ALIASES, BUNDLED
    from mlxgen.weights.load import open_model

__all__ = ["ALIASES", "BUNDLED", "Conversion", "convert", "open_model", "resolve"]

_DEFINED_IN = {
    "ALIASES": "hub.names",
    "BUNDLED": "hub.names",
    "Conversion": "conversion.result",
    "convert": "conversion.converter",
    "open_model": "load",
    "resolve": "hub.locate",
}


def __getattr__(name: str) -> Any:
    """Import on first use: resolving a name needs no MLX, and reading a folder needs no hub client."""
    if name not in _DEFINED_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_DEFINED_IN[name]}"), name)
