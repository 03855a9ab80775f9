"""The device that computes: the choice of it, and what differs between Metal and the CPU backend.

MLX's CPU backend uses the BLAS only for float32 and is far slower with other types: see `compute_dtype`.
``MLXGEN_DEVICE=cpu`` or ``gpu`` chooses the device; if it is unset, MLX uses the GPU if there is one. It is read when
this module is imported, before mlxgen creates an array, and child processes inherit it.
``MLXGEN_COMPILE``: see `compiles_steps`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, TypeVar, cast

import mlx.core as mx
import mlx.nn as nn

from mlxgen import blas
from mlxgen.dtypes import WEIGHT_TYPES
from mlxgen.errors import OptionError

F = TypeVar("F", bound=Callable[..., Any])

# Head sizes for which MLX's Metal backend has a fused attention kernel for the few rows of a decode step.
VECTOR_HEAD_DIMS = (64, 96, 128, 192, 256)
MEMORY_FACTS = "/proc/meminfo"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's numbers for mallopt
KEPT = 512 * 1024**2  # bytes that a process keeps after it freed them
LARGEST_KEPT = 32 * 1024**2  # of one array; glibc allows no more

_wiring = threading.Lock()
_wired = _limit_before = 0


def choose_device() -> None:
    """Make MLXGEN_DEVICE, if set, MLX's default device. Raises OptionError if there is no such device."""
    setting = os.environ.get("MLXGEN_DEVICE", "").lower()
    if setting not in ("", "cpu", "gpu"):
        raise OptionError(f"MLXGEN_DEVICE must be cpu or gpu, not {setting!r}")
    if setting == "gpu" and not mx.is_available(mx.gpu):
        raise OptionError("MLXGEN_DEVICE=gpu: MLX finds no GPU; set it to cpu, or unset it")
    if setting:
        mx.set_default_device(mx.gpu if setting == "gpu" else mx.cpu)


choose_device()


def keep_freed_memory() -> None:
    """Let the allocator reuse the memory of large arrays rather than return it to the system (Linux with glibc only).

    Otherwise the system clears every page of the next large array again, which can take longer than computing it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt:
        mallopt(M_TRIM_THRESHOLD, KEPT)
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)


keep_freed_memory()


def on_cpu() -> bool:
    """Whether MLX computes on its CPU backend."""
    return bool(mx.default_device().type == mx.DeviceType.cpu)


def compute_dtype(stored: mx.Dtype, asked: str | None = None) -> mx.Dtype:
    """The type to compute in, by name; None is float32 on the CPU backend, where others are far slower; else as stored.

    Raises OptionError for a name that is not one of dtypes.WEIGHT_TYPES.
    """
    if asked is None:
        return mx.float32 if on_cpu() else stored
    found = next((dtype for dtype in WEIGHT_TYPES if dtype.name == asked), None)
    if found is None:
        names = ", ".join(dtype.name for dtype in WEIGHT_TYPES)
        raise OptionError(f"dtype must be one of {names}, not {asked!r}")
    return found.mlx


def lay_out_weights(decoder: nn.Module) -> None:
    """Change the memory layout of a decoder's weights to suit the device. Shapes and values stay the same.

    On Metal, matrices lie as [out, in]: the kernel for products of 2 to 15 rows takes no others. Most checkpoints store
    [in, out], so that their weights are transposed views at first.

    On the CPU, products of few rows are limited by reading memory. OpenBLAS's sgemm reads a matrix that is stored as
    [in, out] up to twice as fast as one stored as [out, in]. Where one row goes to its sgemv instead (see mlxgen.blas),
    both are read at full speed, and nothing is changed. Only one weight at a time is duplicated.
    """
    if on_cpu() and blas.is_quick_for_a_row():
        return
    BLOCK = 256  # rows
    for name, module in decoder.named_modules():
        is_matrix = type(module) is nn.Linear or (type(module) is nn.Embedding and name.endswith("wte"))
        if is_matrix and not on_cpu():
            module.weight = mx.contiguous(module.weight)  # no copy where it is so already
            mx.eval(module.weight)
        elif is_matrix and not memoryview(module.weight.T).c_contiguous:
            # Block by block, so that reads across the rows stay within the CPU's cache.
            blocks = mx.split(module.weight, range(BLOCK, module.weight.shape[0], BLOCK))
            module.weight = mx.contiguous(mx.concatenate([block.T for block in blocks], axis=1)).T
            mx.eval(module.weight)


def has_vector_attention(head_dim: int) -> bool:
    """Whether attention decodes with one fused kernel on Metal. Other head sizes take several kernels a layer there."""
    return head_dim in VECTOR_HEAD_DIMS


def compiles_steps() -> bool:
    """Whether decode steps are compiled. They are on Metal, where this saves kernel launches.

    On the CPU it gains almost nothing, and MLX would have to run a C++ compiler first. ``MLXGEN_COMPILE=on`` compiles
    steps on the CPU as well, if there is a C++ compiler; ``off`` turns compilation off on Metal.
    """
    setting = os.environ.get("MLXGEN_COMPILE", "").lower()
    if on_cpu():
        return setting == "on" and shutil.which("g++") is not None
    return setting != "off"


def fused(function: F) -> F:
    """Compile an elementwise function to one kernel on Metal. On the CPU, where this needs a compiler, do nothing."""
    return function if on_cpu() else cast(F, _compiled(function))


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return partial(mx.compile, shapeless=True)(function)


@contextlib.contextmanager
def wired_memory() -> Iterator[None]:
    """Let Metal keep the weights resident while the body runs, up to its recommended limit, as mlx-lm does.

    Overlapping uses share the limit: the first one sets it, and the last one restores it.
    """
    global _wired, _limit_before
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
                mx.synchronize()  # running work may still need it
                mx.set_wired_limit(_limit_before)


def device_name() -> str:
    """The name of the device, such as "Apple M2 (gpu)"."""
    kind = "cpu" if on_cpu() else "gpu"
    name = mx.device_info().get("device_name", platform.machine())
    return f"{name} ({kind})"


def free_memory() -> int:
    """How many bytes are available: of Metal's recommended limit, or of the system's memory on the CPU."""
    if not on_cpu():
        return int(mx.device_info()["max_recommended_working_set_size"]) - mx.get_active_memory()
    with contextlib.suppress(OSError, StopIteration), open(MEMORY_FACTS) as facts:
        # Linux: free memory, including file caches that the system can release
        return 1024 * next(int(line.split()[1]) for line in facts if line.startswith("MemAvailable:"))
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
