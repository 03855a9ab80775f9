"""The place of converted models: one folder for each, which opens by its name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mlxgen.weights.hub.names import ALIASES, BUNDLED


def converted_folder() -> Path:
    """The folder that `mlxgen convert` writes to by default, wherever it is run.

    It is $MLXGEN_HOME/models, or else in the place that the system has for a user's data.
    """
    if home := os.environ.get("MLXGEN_HOME"):
        return Path(home).expanduser() / "models"
    if sys.platform == "darwin":
        data = Path.home() / "Library" / "Application Support"
    else:
        data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return data / "mlxgen" / "models"


def converted_model(name: str) -> Path | None:
    """The folder of the converted model called ``name``, or None. Aliases and the bundled model come first."""
    if name in ("", ".", "..") or Path(name).name != name or name == BUNDLED or name.lower() in ALIASES:
        return None
    folder = converted_folder() / name
    return folder if folder.is_dir() else None
