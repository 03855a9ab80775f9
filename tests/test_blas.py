"""Which BLAS is loaded, and when. Most cases are a fresh process: a BLAS stays loaded."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlxgen import blas

from .support.devices import linux_only
from .support.processes import fresh

linux = linux_only("elsewhere MLX has a BLAS of its own")
WHEEL = next((p for p in (Path(f, blas.WHEEL_BLAS["x86_64"]) for f in sys.path) if p.is_file()), None)
with_wheel = pytest.mark.skipif(
    WHEEL is None or platform.machine() != "x86_64" or not blas._has_avx2(),
    reason="needs the dependency's OpenBLAS and AVX2",
)

REPORT = """
import json
from mlxgen import blas
from mlxgen.errors import OptionError
try: library = blas.loaded_library()
except OptionError as error: library = f"error: {error}"
print(json.dumps(library))
"""


def told(script: str, setting: str | None = None) -> Any:
    """What a new process prints as JSON, with this MLXGEN_BLAS."""
    env = {name: value for name, value in os.environ.items() if name != "MLXGEN_BLAS"}
    return fresh(script, env=env if setting is None else env | {"MLXGEN_BLAS": setting})


@linux
@with_wheel
def test_the_dependencys_library_is_loaded_by_default() -> None:
    assert told(REPORT) == str(WHEEL)


@linux
@with_wheel
def test_it_is_loaded_when_mlx_is_imported_and_not_before() -> None:
    script = """
import json, sys
import mlxgen
def loaded(): return any("libopenblas" in line for line in open("/proc/self/maps"))
before = loaded()
import mlx.core as mx
print(json.dumps([before, loaded()]))
"""
    assert told(script) == [False, True]


@linux
@pytest.mark.parametrize("setting", ["off", "OFF"])
def test_off_leaves_mlxs_own(setting: str) -> None:
    script = """
import json
import mlxgen
import mlx.core as mx
maps = open("/proc/self/maps").read()
print(json.dumps([mlxgen.blas.loaded_library(), "libopenblas" in maps]))
"""
    assert told(script, setting) == [None, False]


@linux
@with_wheel
def test_a_path_picks_another(tmp_path: Path) -> None:
    other = tmp_path / "libother.so"
    assert WHEEL is not None
    other.symlink_to(WHEEL)
    assert told(REPORT, str(other)) == str(other)


@linux
def test_a_bad_path_is_one_line_that_names_it() -> None:
    for bad in ("/no/such/library.so", __file__, "libc.so.6"):
        error = told(REPORT, bad)
        assert error.startswith("error: MLXGEN_BLAS: ") and bad in error and "\n" not in error
    ended = subprocess.run(
        [sys.executable, "-m", "mlxgen", "info"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "MLXGEN_BLAS": "/no/such/library.so"},
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("Error: MLXGEN_BLAS: /no/such/library.so") and ended.stderr.count("\n") == 1


@linux
def test_reloading_mlxgen_warns_of_nothing() -> None:
    script = (
        "import importlib, json, warnings, mlxgen, mlx.core\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    importlib.reload(mlxgen)\n"
        "print(json.dumps([str(one.message) for one in caught]))"
    )
    assert fresh(script) == []


def test_importing_mlx_first_is_warned_about() -> None:
    script = """
import json, warnings
import mlx.core
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import mlxgen
from mlxgen import blas, device
print(json.dumps([[str(w.message) for w in told], blas.loaded_library()]))
"""
    (warning,), blas = told(script)
    assert "import mlxgen first" in warning and blas is None
    assert told(script, "off") == [[], None]


@linux
@with_wheel
def test_a_cpu_without_avx2_is_not_given_the_wheels_library(monkeypatch: pytest.MonkeyPatch) -> None:
    assert blas._default_libraries()[-2:] == [str(WHEEL), blas.SYSTEM_BLAS]
    monkeypatch.setattr(blas, "_has_avx2", lambda: False)
    assert str(WHEEL) not in blas._default_libraries() and blas.SYSTEM_BLAS in blas._default_libraries()


@linux
@with_wheel
def test_a_linux_without_a_fortran_runtime_is_given_mlxs() -> None:
    """The first attempt fails as it does there; the second finds the copy in memory."""
    script = """
import ctypes, json
from mlxgen import blas
wanted, load, tried = blas._default_libraries()[0], ctypes.CDLL, []
def slim(path, *arguments, **options):
    tried.append(path)
    if tried.count(wanted) == 1 and path == wanted:
        raise OSError("libgfortran.so.5: cannot open shared object file: No such file or directory")
    return load(path, *arguments, **options)
ctypes.CDLL = slim
loaded = blas.loaded_library()
print(json.dumps([loaded == wanted, tried.count(wanted) > 1, "memfd:libgfortran" in open("/proc/self/maps").read()]))
"""
    assert told(script) == [True, True, True]
