"""What MLX computes on, and what makes it quick there.

On Linux, MLX's wheel carries the reference BLAS, which is far from what the machine can do. An optimised BLAS
loaded into the process *before* MLX takes its place, so ``mlxgen/__init__.py`` calls `prepare_blas` first of
all, and this module imports MLX inside functions only. The CPU backend sends only float32 to the BLAS:
`compute_dtype`.

``MLXGEN_BLAS=off`` leaves MLX's own; ``MLXGEN_BLAS=/path/to/library.so`` takes another. ``MLXGEN_COMPILE``: see
`compiles_steps`.
"""

import contextlib
import ctypes
import glob
import os
import platform
import shutil
import sys
import threading
import warnings
from typing import TYPE_CHECKING

from mlxgen.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import mlx.core as mx

    from mlxgen.decoder import GPT2

WHEEL_BLAS = "cmeel.prefix/lib/libopenblas.so"  # in site-packages, from the dependency
SYSTEM_BLAS = "libopenblas.so.0"  # what Linux distributions call theirs
MKL = "libmkl_rt.so*"  # from the extra of that name: it reads memory faster for a single row
MKL_THREADING_TBB = 4  # mkl_service.h; quicker for a single row than its OpenMP
NEEDED_SYMBOL = "cblas_sgemm"

_wiring = threading.Lock()
_wired = _limit_before = 0

_loaded: str | None = None
_problem: str | None = None


class _BeforeMLX:
    """Finds no module itself: it loads the BLAS at the moment MLX is looked for, and not where MLX never is."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname in ("mlx", "mlx.core"):
            load_blas()


def prepare_blas() -> None:
    """See to it that `load_blas` runs before MLX is imported; warn where it is too late for that (Linux only)."""
    if sys.platform != "linux" or _wish() == "off":
        return
    if "mlx.core" in sys.modules:  # its symbols are bound already
        late = "MLX was imported before mlxgen and keeps its own slow BLAS: import mlxgen first"
        warnings.warn(late, RuntimeWarning, stacklevel=3)
    elif not any(isinstance(finder, _BeforeMLX) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforeMLX())


def load_blas() -> None:
    """Load the optimised BLAS for the whole process (Linux only). Never raises: see `blas`."""
    global _loaded, _problem
    wish = _wish()
    if sys.platform != "linux" or wish == "off" or _loaded or _problem or "mlx.core" in sys.modules:
        return
    if wish:
        try:
            _load(wish)
            _loaded = wish
        except OSError as error:
            _problem = f"MLXGEN_BLAS: {error}. Set it to a BLAS library, to 'off', or not at all."
        return
    for candidate in _default_libraries():
        with contextlib.suppress(OSError):
            _load(candidate)
            _loaded = candidate
            return


def blas() -> str | None:
    """The BLAS library that is loaded, or None where MLX uses its own.

    Raises OptionError when MLXGEN_BLAS names a library that cannot be loaded.
    """
    load_blas()
    if _problem:
        raise OptionError(_problem)
    return _loaded


def _wish() -> str:
    wish = os.environ.get("MLXGEN_BLAS", "")
    return "off" if wish.lower() == "off" else wish


def on_cpu() -> bool:
    """Whether MLX computes on its CPU backend."""
    import mlx.core as mx

    return bool(mx.default_device().type == mx.DeviceType.cpu)


def compute_dtype(stored: "mx.Dtype") -> "mx.Dtype":
    """The type to compute in: float32 on the CPU backend (others are far slower there), elsewhere as stored."""
    import mlx.core as mx

    return mx.float32 if on_cpu() else stored


def prepare(decoder: "GPT2") -> None:
    """Lay out a decoder's weights for this device; their shapes and values stay as they are.

    On the CPU, products of few rows are as fast as memory is read, and the BLAS reads a matrix that lies in memory as
    [in, out] up to twice as fast as one that lies as [out, in]. One weight at a time exists twice.
    """
    if not on_cpu():
        return
    import mlx.core as mx
    import mlx.nn as nn

    BLOCK = 256  # rows
    for name, module in decoder.named_modules():
        is_matrix = type(module) is nn.Linear or name.endswith("wte")
        if is_matrix and not memoryview(module.weight.T).c_contiguous:
            # Block by block, so that what is read across the rows stays in the CPU's cache.
            blocks = mx.split(module.weight, range(BLOCK, module.weight.shape[0], BLOCK))
            module.weight = mx.contiguous(mx.concatenate([block.T for block in blocks], axis=1)).T
            mx.eval(module.weight)


def compiles_steps() -> bool:
    """Whether a decode step is compiled: on Metal, where each operation less is a kernel less to launch.

    On the CPU it gains next to nothing, and MLX would run a C++ compiler first. ``MLXGEN_COMPILE=on`` has it so where
    there is one; ``off`` leaves Metal's steps as they are.
    """
    wish = os.environ.get("MLXGEN_COMPILE", "").lower()
    if on_cpu():
        return wish == "on" and shutil.which("g++") is not None
    return wish != "off"


@contextlib.contextmanager
def wired_memory() -> "Iterator[None]":
    """While the body runs, let Metal keep the weights resident, as much as it recommends, as mlx-lm does.

    Several at a time share it: the first one sets Metal's limit, and the last one restores it.
    """
    global _wired, _limit_before
    import mlx.core as mx

    if on_cpu() or not mx.metal.is_available():
        yield
        return
    with _wiring:
        _wired += 1
        if _wired == 1:
            _limit_before = mx.set_wired_limit(int(mx.device_info()["max_recommended_working_set_size"]))
    try:
        yield
    finally:
        with _wiring:
            _wired -= 1
            if _wired == 0:
                mx.synchronize()  # what still runs may need it
                mx.set_wired_limit(_limit_before)


def device_name() -> str:
    """The device in words, such as "Apple M2 (gpu)"."""
    import mlx.core as mx

    kind = "cpu" if on_cpu() else "gpu"
    name = mx.device_info().get("device_name", platform.machine())
    return f"{name} ({kind})"


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
            with os.fdopen(os.memfd_create("libgfortran.so.5"), "wb") as memory:
                memory.write(image)
                memory.flush()
                ctypes.CDLL(f"/proc/self/fd/{memory.fileno()}", mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return True
    return False
