"""A measurement's own process: what ran before it does not count."""

from __future__ import annotations

import os
import subprocess
import sys

from mlxgen.errors import MlxgenError


def output_of(side: str, module: str, arguments: list[str], environment: dict[str, str] | None = None) -> str:
    """The last line that `python -m MODULE ARGUMENTS` prints. environment: variables to set.

    If it fails, raises MlxgenError with the last line of its errors.
    """
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env={**os.environ, **(environment or {})}, capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise MlxgenError(f"{side} could not be measured: {said}")
    return done.stdout.splitlines()[-1]
