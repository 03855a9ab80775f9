"""Reading untrusted JSON files: their size is limited, and errors name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlxgen.errors import ModelError, reason_of
from mlxgen.lfs_pointer import check_not_pointer
from mlxgen.regular_file import read_regular

MAX_BYTES = 8 << 20


def read_json(path: Path, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Read a file that contains one JSON object, of at most ``max_bytes``. Raises ModelError."""
    data = read_regular(path, max_bytes, f"a valid {path.name}")
    try:
        value = json.loads(data)
    except RecursionError:
        raise ModelError(f"{path}: not a valid {path.name} (nested too deeply); download it again") from None
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, a number of too many digits
        check_not_pointer(path)
        raise ModelError(f"{path}: not valid JSON ({reason_of(error)}); download it again") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: must contain a JSON object, but contains {describe(value)}")
    return value


def describe(value: Any) -> str:
    """Describe a value from a JSON file in a few words, for a one-line message."""
    if type(value) is int and value.bit_length() > 128:
        return "a number far too large"
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value) if isinstance(value, (str, int, float, type(None))) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."
