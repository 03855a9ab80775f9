"""How to install a package where this Python finds it."""

from __future__ import annotations

import shlex
import shutil
import sys
from importlib.util import find_spec


def install_command(*packages: str) -> str:
    """The shell command that installs the packages for the running interpreter.

    An environment made with ``--without-pip`` has no pip, so another Python's pip is told where to install.
    """
    names = shlex.join(packages)
    here = shlex.quote(sys.executable)
    if find_spec("pip") is not None:
        return f"{here} -m pip install {names}"
    pip = next((name for name in ("pip3", "pip") if shutil.which(name)), None)
    if pip is None:
        base: str = getattr(sys, "_base_executable", sys.executable)  # the Python that made the environment
        pip = f"{shlex.quote(base)} -m pip"
    return f"{pip} --python {here} install {names}"
