"""The BLAS that MLX's CPU backend uses on Linux.

MLX's Linux wheel includes the reference BLAS, which is much slower than an optimized one. An optimized BLAS takes its
place if it is loaded into the process *before* MLX. So ``mlxgen/__init__.py`` first calls `install_hook`, and this
module never imports MLX. ``MLXGEN_BLAS=off`` keeps MLX's BLAS; ``MLXGEN_BLAS=/path/to/library.so`` selects another.
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
SYSTEM_BLAS = "libopenblas.so.0"  # its name in Linux distributions
MKL = "libmkl_rt.so*"  # from the mkl extra; it reads memory faster in products of a single row
MKL_THREADING_TBB = 4  # value from mkl_service.h; TBB is faster than OpenMP for a single row
NEEDED_SYMBOL = "cblas_sgemm"

_loaded: str | None = None
_problem: str | None = None


class _BeforeMLX:
    """An import hook that finds no modules, but loads the BLAS when MLX is about to be imported."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname in ("mlx", "mlx.core"):
            load_library()


def install_hook() -> None:
    """Make `load_library` run before MLX is imported, or warn if MLX already was (Linux only)."""
    if _setting() == "off":
        return
    if "mlx.core" in sys.modules:  # its symbols are already bound
        late = "MLX was imported before mlxgen and uses its own, slow BLAS; import mlxgen first"
        warnings.warn(late, RuntimeWarning, stacklevel=3)
    elif not any(isinstance(finder, _BeforeMLX) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforeMLX())


def load_library() -> None:
    """Load an optimized BLAS into the process (Linux only). Never raises; `loaded_library` reports errors."""
    global _loaded, _problem
    setting = _setting()
    if setting == "off" or _loaded or _problem or "mlx.core" in sys.modules:
        return
    if setting:
        try:
            _load(setting)
            _loaded = setting
        except OSError as error:
            _problem = f"MLXGEN_BLAS: {error}. Set it to a BLAS library or to 'off', or unset it."
        return
    for candidate in _default_libraries():
        with contextlib.suppress(OSError):
            _load(candidate)
            _loaded = candidate
            return


def loaded_library() -> str | None:
    """The loaded BLAS library, or None if MLX uses its own. Loads it first if necessary.

    Raises OptionError if MLXGEN_BLAS is set to a library that cannot be loaded.
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
    """The libraries that are safe to load on this machine, best first."""
    # pip installs MKL into the folder that contains python3.x/site-packages
    places = (os.path.join(glob.escape(folder), "..", "..", MKL) for folder in sys.path)
    mkl = [os.path.normpath(found) for place in places for found in sorted(glob.glob(place), reverse=True)][:1]
    if platform.machine() != "x86_64" or not _has_avx2():
        return [*mkl, SYSTEM_BLAS]  # without AVX2, the wheel's BLAS would crash with an illegal instruction
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
    """Load the TBB library from MKL's wheel, for MKL's threads; returns whether it was found."""
    try:
        ctypes.CDLL(os.path.join(folder, "libtbb.so.12"), mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _load_gfortran() -> bool:
    """Load the Fortran runtime that OpenBLAS needs from MLX's wheel; returns whether it worked.

    The wheel's file has the internal name ``libgfortran-HASH.so.5.0.0``. The loader matches libraries by this name, so
    a copy in memory is loaded with the usual name instead.
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
