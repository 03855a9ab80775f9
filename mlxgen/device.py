"""The device that computes: its type, how weights lie in its memory, and what is compiled for it.

MLX's CPU backend sends only float32 products to the BLAS, and computes other types far slower: see `compute_dtype`.
``MLXGEN_DEVICE=cpu`` or ``gpu`` chooses the device, here and in every process that is started from here; unset, MLX
chooses the GPU where there is one. It is read when this module is imported, before mlxgen makes an array.
``MLXGEN_COMPILE``: see `compiles_steps`.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from mlxgen.errors import OptionError

MEMORY_FACTS = "/proc/meminfo"

_wiring = threading.Lock()
_wired = _limit_before = 0


def choose_device() -> None:
    """Make MLXGEN_DEVICE, if it is set, MLX's default device. Raises OptionError for a device that there is not."""
    setting = os.environ.get("MLXGEN_DEVICE", "").lower()
    if setting not in ("", "cpu", "gpu"):
        raise OptionError(f"MLXGEN_DEVICE must be cpu or gpu, not {setting!r}")
    if setting == "gpu" and not mx.is_available(mx.gpu):
        raise OptionError("MLXGEN_DEVICE=gpu: MLX finds no GPU here; set it to cpu, or not at all")
    if setting:
        mx.set_default_device(mx.gpu if setting == "gpu" else mx.cpu)


choose_device()


def on_cpu() -> bool:
    """Whether MLX computes on its CPU backend."""
    return bool(mx.default_device().type == mx.DeviceType.cpu)


def compute_dtype(stored: mx.Dtype) -> mx.Dtype:
    """The type to compute in: float32 on the CPU backend (others are far slower there), elsewhere as stored."""
    return mx.float32 if on_cpu() else stored


def lay_out_weights(decoder: nn.Module) -> None:
    """Lay out a decoder's weights for this device; their shapes and values stay as they are.

    On the CPU, products of few rows are as fast as memory is read, and the BLAS reads a matrix that lies in memory as
    [in, out] up to twice as fast as one that lies as [out, in]. One weight at a time exists twice.
    """
    if not on_cpu():
        return
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
    setting = os.environ.get("MLXGEN_COMPILE", "").lower()
    if on_cpu():
        return setting == "on" and shutil.which("g++") is not None
    return setting != "off"


def fused(function: Callable[[mx.array], mx.array]) -> Callable[[mx.array], mx.array]:
    """An elementwise function as one kernel on Metal; on the CPU, where that takes a C++ compiler, as it is."""
    return function if on_cpu() else partial(mx.compile, shapeless=True)(function)


@contextlib.contextmanager
def wired_memory() -> Iterator[None]:
    """While the body runs, let Metal keep the weights resident, as much as it recommends, as mlx-lm does.

    Several at a time share it: the first one sets Metal's limit, and the last one restores it.
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
                mx.synchronize()  # what still runs may need it
                mx.set_wired_limit(_limit_before)


def device_name() -> str:
    """The device in words, such as "Apple M2 (gpu)"."""
    kind = "cpu" if on_cpu() else "gpu"
    name = mx.device_info().get("device_name", platform.machine())
    return f"{name} ({kind})"


def free_memory() -> int:
    """Bytes that may still be taken: what Metal recommends, or what the system has free."""
    if not on_cpu():
        return int(mx.device_info()["max_recommended_working_set_size"]) - mx.get_active_memory()
    with contextlib.suppress(OSError, StopIteration), open(MEMORY_FACTS) as facts:
        # Linux: what is free, and what it gives back from its caches of files
        return 1024 * next(int(line.split()[1]) for line in facts if line.startswith("MemAvailable:"))
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
