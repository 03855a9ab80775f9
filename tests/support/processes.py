"""New processes: what is imported, loaded or left in one does not touch the tests' own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def fresh(script: str, *, cwd: Path | None = None, env: dict[str, str] | None = None) -> Any:
    """What a new Python prints as JSON. env: the whole environment, where it is not this process's."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False, cwd=cwd, env=env
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
