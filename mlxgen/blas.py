"""The BLAS that MLX's CPU backend computes with on Linux.

MLX's Linux wheel carries the reference BLAS, which is far slower than the machine. An optimised BLAS loaded into the
process *before* MLX takes its place, so ``mlxgen/__init__.py`` calls `install_hook` first of all, and this module never
imports MLX. ``MLXGEN_BLAS=off`` keeps MLX's own; ``MLXGEN_BLAS=/path/to/library.so`` names another.
"""

import contextlib
import ctypes
import glob
import os
import platform
import sys
import warnings

from mlxgen.errors import OptionError

WHEEL_BLAS = "cmeel.prefix/lib/libopenblas.so"  # in site-packages, from the dependency
SYSTEM_BLAS = "libopenblas.so.0"  # what Linux distributions call theirs
MKL = "libmkl_rt.so*"  # from the extra of that name: it reads memory faster for a single row
MKL_THREADING_TBB = 4  # mkl_service.h; quicker for a single row than its OpenMP
NEEDED_SYMBOL = "cblas_sgemm"

_loaded: str | None = None
_problem: str | None = None


class _BeforeMLX:
    """Finds no module itself: it loads the BLAS at the moment MLX is looked for, and not where MLX never is."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname in ("mlx", "mlx.core"):
            load_library()


def install_hook() -> None:
    """See to it that `load_library` runs before MLX is imported; warn where it is too late for that (Linux only)."""
    if _setting() == "off":
        return
    if "mlx.core" in sys.modules:  # its symbols are bound already
        late = "MLX was imported before mlxgen and keeps its own slow BLAS: import mlxgen first"
        warnings.warn(late, RuntimeWarning, stacklevel=3)
    elif not any(isinstance(finder, _BeforeMLX) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforeMLX())


def load_library() -> None:
    """Load the optimised BLAS for the whole process (Linux only). Never raises: see `loaded_library`."""
    global _loaded, _problem
    setting = _setting()
    if setting == "off" or _loaded or _problem or "mlx.core" in sys.modules:
        return
    if setting:
        try:
            _load(setting)
            _loaded = setting
        except OSError as error:
            _problem = f"MLXGEN_BLAS: {error}. Set it to a BLAS library, to 'off', or not at all."
        return
    for candidate in _default_libraries():
        with contextlib.suppress(OSError):
            _load(candidate)
            _loaded = candidate
            return


def loaded_library() -> str | None:
    """The BLAS library that is loaded, or None where MLX uses its own.

    Raises OptionError when MLXGEN_BLAS names a library that cannot be loaded.
    """
    load_library()
    if _problem:
        raise OptionError(_problem)
    return _loaded


def _setting() -> str:
    """MLXGEN_BLAS; "off" wherever the system is not Linux."""
    setting = os.environ.get("MLXGEN_BLAS", "")
    return "off" if sys.platform != "linux" or setting.lower() == "off" else setting


def _default_libraries() -> list[str]:
    """Libraries that are safe to load here, best first."""
    # pip puts it into the folder that has python3.x/site-packages in it
    places = (os.path.join(glob.escape(folder), "..", "..", MKL) for folder in sys.path)
    mkl = [os.path.normpath(found) for place in places for found in sorted(glob.glob(place), reverse=True)][:1]
    if platform.machine() != "x86_64" or not _has_avx2():
        return [*mkl, SYSTEM_BLAS]  # without AVX2 the wheel's would end the process with an illegal instruction
    wheels = [os.path.join(folder, WHEEL_BLAS) for folder in sys.path]
    return [*mkl, *filter(os.path.isfile, wheels), SYSTEM_BLAS]


def _has_avx2() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            flags = next((line for line in file if line.startswith("flags")), "").split()
    except OSError:
        return False
    return "avx2" in flags and "fma" in flags


def _load(path: str) -> None:
    is_mkl = os.path.basename(path).startswith("libmkl_rt.")
    has_tbb = is_mkl and _load_tbb(os.path.dirname(path))
    try:
        library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        if "libgfortran" not in str(error) or not _load_gfortran():
            raise
        library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    if not hasattr(library, NEEDED_SYMBOL):
        raise OSError(f"{path} has no {NEEDED_SYMBOL}")
    if has_tbb:
        library.MKL_Set_Threading_Layer(MKL_THREADING_TBB)


def _load_tbb(folder: str) -> bool:
    """Give MKL the threads that its wheel comes with."""
    try:
        ctypes.CDLL(os.path.join(folder, "libtbb.so.12"), mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _load_gfortran() -> bool:
    """Give OpenBLAS the Fortran runtime that a slim Linux lacks, from MLX's own wheel.

    The wheel's copy names itself ``libgfortran-HASH.so.5.0.0``. The loader matches by that name, so a copy in
    memory is loaded under the plain one.
    """
    from pathlib import Path

    for fortran in (file for folder in sys.path for file in Path(folder).glob("mlx_cpu.libs/libgfortran-*.so*")):
        own_name = fortran.name.encode()
        image = fortran.read_bytes().replace(own_name, b"libgfortran.so.5".ljust(len(own_name), b"\0"))
        try:
            for quadmath in fortran.parent.glob("libquadmath-*.so*"):
                ctypes.CDLL(str(quadmath), mode=ctypes.RTLD_GLOBAL)
            _load_image("libgfortran.so.5", image)
        except OSError:
            continue
        return True
    return False


def _load_image(name: str, image: bytes) -> None:
    """Load a library from memory. Raises OSError."""
    if sys.platform == "linux":
        with os.fdopen(os.memfd_create(name), "wb") as memory:
            memory.write(image)
            memory.flush()
            ctypes.CDLL(f"/proc/self/fd/{memory.fileno()}", mode=ctypes.RTLD_GLOBAL)
