"""New processes: what is imported, loaded or left in one does not touch the tests' own."""

from __future__ import annotations

import json
import signal
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


# The system ends this process at the moment when a file that it writes would pass the limit, in the middle of a line or
# of a tensor: no time is measured, and nothing is cleaned up. Only rank 1 where there are several.
DYING = """
import os, resource, runpy, signal, sys
import mlxgen, mlx.core  # what they write in order to load a BLAS is over
sys.dont_write_bytecode = True  # those files would count
if os.environ.get("MLX_RANK", "1") == "1":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
"""
KILLED = -signal.SIGXFSZ  # its exit status


def dying(size: int, *arguments: str) -> list[str]:
    """The command line of `mlxgen ARGUMENTS` in a process that dies when a file that it writes passes `size` bytes."""
    run = "del sys.argv[1]\nrunpy.run_module('mlxgen', run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", DYING + run, str(size), *arguments]


def dying_script(size: int, script: str, *arguments: str) -> list[str]:
    """The same of a script, whose arguments are sys.argv[2:]."""
    return [sys.executable, "-c", DYING + script, str(size), *arguments]
