"""The BLAS that MLX's CPU backend uses on Linux.

MLX's Linux wheel includes the reference BLAS, which is much slower than an optimized one. An optimized BLAS takes its
place if it is loaded into the process *before* MLX. So ``mlxgen/__init__.py`` first calls `install_hook`, and this
module never imports MLX. ``MLXGEN_BLAS=off`` keeps MLX's BLAS; ``MLXGEN_BLAS=/path/to/library.so`` selects another.

OpenBLAS is slow in products of a single row, which are what a decode step consists of, and in any product beside
another busy process. If mlxgen was installed with a C compiler, ``sgemm.c`` is loaded in front of it and does better:
see `is_quick_for_a_row`.
"""

import contextlib
import ctypes
import os
import platform
import sys
import warnings
from importlib.machinery import EXTENSION_SUFFIXES

from mlxgen.errors import OptionError

# In site-packages, from the dependency. On x86-64 the build with standard names, which works without a C compiler. That
# build needs the newest CPUs on arm64, so there it is NumPy's, which chooses its kernels at run time.
WHEEL_BLAS = {
    "x86_64": "cmeel.prefix/lib/libopenblas.so",
    "aarch64": "scipy_openblas32/lib/libscipy_openblas.so",
}
SYSTEM_BLAS = "libopenblas.so.0"  # its name in Linux distributions
NEEDED_SYMBOL = "cblas_sgemm"
PREFIXES = ("", "scipy_")  # of OpenBLAS's names; MLX can use the second only through sgemm.c

_loaded: str | None = None
_problem: str | None = None
_few_rows: ctypes.CDLL | None = None
_has_vectors = False  # whether the processor has the vector instructions that few_rows.c and operations.c need


class _BeforeMLX:
    """An import hook that finds no modules, but loads the BLAS when MLX is about to be imported."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname in ("mlx", "mlx.core"):
            load_library()


def install_hook() -> None:
    """Make `load_library` run before MLX is imported, or warn if MLX already was (Linux only)."""
    if _setting() == "off" or any(isinstance(finder, _BeforeMLX) for finder in sys.meta_path):
        return
    if "mlx.core" in sys.modules:  # its symbols are already bound
        late = "MLX was imported before mlxgen and uses its own, slow BLAS; import mlxgen first"
        warnings.warn(late, RuntimeWarning, stacklevel=3)
    else:
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


def is_quick_for_a_row() -> bool:
    """Whether products of one row read a matrix once, whichever way it lies in memory."""
    load_library()
    return _few_rows is not None


def compiled_part() -> ctypes.CDLL | None:
    """The compiled C sources; None where there are none, or this processor is older than they need."""
    load_library()
    return _few_rows if _has_vectors else None


def _setting() -> str:
    """MLXGEN_BLAS; "off" wherever the system is not Linux."""
    setting = os.environ.get("MLXGEN_BLAS", "")
    return "off" if sys.platform != "linux" or setting.lower() == "off" else setting


def _default_libraries() -> list[str]:
    """The libraries that are safe to load on this machine, best first."""
    machine = platform.machine()
    if machine == "x86_64" and not _has_avx2():
        return [SYSTEM_BLAS]  # without AVX2, the wheel's BLAS would crash with an illegal instruction
    wheels = [os.path.join(folder, WHEEL_BLAS[machine]) for folder in sys.path if machine in WHEEL_BLAS]
    return [*filter(os.path.isfile, wheels), SYSTEM_BLAS]


def _has_avx2() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            flags = next((line for line in file if line.startswith("flags")), "").split()
    except OSError:
        return False
    return "avx2" in flags and "fma" in flags


def _load(path: str) -> None:
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        if "libgfortran" not in str(error) or not _load_gfortran():
            raise
        library = ctypes.CDLL(path)
    prefix = next((prefix for prefix in PREFIXES if hasattr(library, prefix + NEEDED_SYMBOL)), None)
    if prefix is None:
        raise OSError(f"{path} has no {NEEDED_SYMBOL}")
    in_front = _load_few_rows(library, prefix)  # of the library, so that MLX finds its sgemm first
    if prefix and not in_front:
        raise OSError(f"{path} can be used only where mlxgen was installed with a C compiler")
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def _load_few_rows(library: ctypes.CDLL, prefix: str) -> bool:
    """Load the compiled sgemm.c in front of an OpenBLAS. Return False if it was not compiled, or for another BLAS."""
    global _few_rows, _has_vectors
    here = os.path.dirname(__file__)
    compiled = next((f for s in EXTENSION_SUFFIXES if os.path.isfile(f := os.path.join(here, "_sgemm" + s))), None)
    if compiled is None or not hasattr(library, prefix + "openblas_set_num_threads"):
        return False
    try:
        few_rows = ctypes.CDLL(compiled, mode=ctypes.RTLD_GLOBAL)
    except OSError:  # built for another machine
        return False
    names = ("cblas_sgemm", "cblas_sgemv", "openblas_set_num_threads")
    functions = (ctypes.cast(getattr(library, prefix + name), ctypes.c_void_p) for name in names)
    threads = getattr(library, prefix + "openblas_get_num_threads")()  # set by OPENBLAS_NUM_THREADS
    _has_vectors = bool(few_rows.mlxgen_use(*functions, threads))
    _few_rows = few_rows
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
