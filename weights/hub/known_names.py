"""The names of the models on this machine, and the aliases: from the names of folders, so quickly, for the shell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mlxgen.errors import ModelError
from mlxgen.json_file import read_json
from mlxgen.weights.hub.converted import converted_folder, converted_model
from mlxgen.weights.hub.names import ALIASES, BUNDLED


def known_names() -> dict[str, str]:
    """Name -> what it is: "bundled", "converted", the repository of an alias, or "cached"."""
    return {
        BUNDLED: "bundled",
        **dict.fromkeys(_converted(), "converted"),
        **ALIASES,
        **dict.fromkeys(_cached(), "cached"),
    }


def _converted() -> list[str]:
    place = converted_folder()
    names = sorted(path.parent.name for path in place.glob("*/config.json"))
    return [name for name in names if not name.startswith(".") and converted_model(name)]


def _cached() -> Iterator[str]:
    """The repositories in the hub's cache whose config names GPT-2."""
    from huggingface_hub import constants

    for folder in sorted(Path(constants.HF_HUB_CACHE).glob("models--*")):
        if any(_is_gpt2(config) for config in folder.glob("snapshots/*/config.json")):
            yield folder.name.removeprefix("models--").replace("--", "/")


def _is_gpt2(config: Path) -> bool:
    try:
        return bool(read_json(config).get("model_type") == "gpt2")
    except ModelError:
        return False
