"""Which BLAS is loaded, and when. Most cases are a fresh process: a BLAS stays loaded."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlxgen import blas

from .support.processes import fresh

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere MLX has a BLAS of its own")
WHEEL = next((p for p in (Path(f, blas.WHEEL_BLAS) for f in sys.path) if p.is_file()), None)
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
def test_the_best_library_is_loaded_by_default() -> None:
    """The dependency's OpenBLAS, or MKL where that was installed as well."""
    mkl = next(Path(sys.prefix, "lib").glob("libmkl_rt.so*"), WHEEL)
    assert told(REPORT) == str(mkl)


@linux
@with_wheel
def test_it_is_loaded_when_mlx_is_imported_and_not_before() -> None:
    script = """
import json, sys
import mlxgen
def loaded(): return any("libopenblas" in line or "libmkl_rt" in line for line in open("/proc/self/maps"))
before = loaded()
import mlx.core as mx
print(json.dumps([before, loaded()]))
"""
    assert told(script) == [False, True]


@linux
@with_wheel
def test_mlx_multiplies_through_it() -> None:
    """MLX calls the symbol that the process resolves first: the loaded library's."""
    script = """
import ctypes, json
import mlxgen
import mlx.core as mx
library = ctypes.CDLL(mlxgen.blas.loaded_library())
address = lambda where: ctypes.cast(where.cblas_sgemm, ctypes.c_void_p).value
a = mx.arange(12, dtype=mx.float32).reshape(3, 4)
print(json.dumps([address(library) == address(ctypes.CDLL(None)), (a @ a.T).tolist()]))
"""
    same, product = told(script)
    assert same
    assert product == [[14, 38, 62], [38, 126, 214], [62, 214, 366]]


@linux
@pytest.mark.parametrize("setting", ["off", "OFF"])
def test_off_leaves_mlxs_own(setting: str) -> None:
    script = """
import json
import mlxgen
import mlx.core as mx
maps = open("/proc/self/maps").read()
print(json.dumps([mlxgen.blas.loaded_library(), any(name in maps for name in ("libopenblas", "libmkl_rt"))]))
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
def test_mkl_goes_before_the_others_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In an environment, for one user, or for all: two folders above what Python imports from."""
    without = [library for library in blas._default_libraries() if "mkl" not in library]
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(packages), *(folder for folder in sys.path if not has_mkl(folder))])
    assert blas._default_libraries() == without
    (tmp_path / "lib" / "libmkl_rt.so.3").touch()
    assert blas._default_libraries() == [str(tmp_path / "lib" / "libmkl_rt.so.3"), *without]


def has_mkl(folder: str) -> bool:
    return any(Path(folder).resolve().parent.parent.glob("libmkl_rt.so*"))


@linux
@pytest.mark.skipif(not list(Path(sys.prefix, "lib").glob("libmkl_rt.so*")), reason="needs the extra mkl")
def test_mkl_is_loaded_with_its_own_threads_and_multiplies_right() -> None:
    script = """
import json
import mlxgen
import mlx.core as mx
a = mx.arange(12, dtype=mx.float32).reshape(3, 4)
product = (a @ a.T).tolist()
maps = open("/proc/self/maps").read()
print(json.dumps([mlxgen.blas.loaded_library(), "libmkl_tbb_thread" in maps, product]))
"""
    blas, with_tbb, product = told(script)
    assert "libmkl_rt" in blas and with_tbb
    assert product == [[14, 38, 62], [38, 126, 214], [62, 214, 366]]


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
print(json.dumps([loaded == wanted, tried.count(wanted), "memfd:libgfortran" in open("/proc/self/maps").read()]))
"""
    assert told(script) == [True, 2, True]
