"""`mlxgen doctor`: what mlxgen runs on, and what makes it slow."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Any

import click

from mlxgen.cli.output import size, write, write_json
from mlxgen.errors import OptionError
from mlxgen.installation import install_command

PACKAGES = ("mlxgen", "mlx", "mlx-lm", "tokenizers", "huggingface-hub", "transformers", "torch")


@click.command()
@click.option("--offline", is_flag=True, help="Do not contact the hub.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def doctor(offline: bool, as_json: bool) -> None:
    """Check the device, the BLAS, package versions and the hub, and say what is slow and why.

    --json prints one object with these keys: system, python, device, device_setting (MLXGEN_DEVICE, or null where it
    is not set), memory (bytes), compute_dtype (of float16 weights), blas (a path, or null for MLX's own),
    quick_for_a_row (whether mlxgen's own sgemm stands in front of it), operations (whether mlxgen's compiled operations
    are used), versions (null if not installed), hub (address, whether it was reached, cache folder), advice (a list of
    sentences, empty if there is nothing to improve).
    """
    entries = examine(offline)
    if as_json:
        write_json(entries)
        return
    versions = ", ".join(f"{name} {version or '-'}" for name, version in entries["versions"].items())
    hub = entries["hub"]
    reached = {True: "reached", False: "not reached", None: "not tried"}[hub["reached"]]
    chosen = ", chosen by MLXGEN_DEVICE" if entries["device_setting"] else ""
    lines = [
        ("system", f"{entries['system']}, Python {entries['python']}"),
        ("device", f"{entries['device']}{chosen}, {size(entries['memory'])} of memory"),
        ("dtype", f"float16 weights are computed in {entries['compute_dtype']}"),
        ("BLAS", (entries["blas"] or "MLX's own") + _ours(entries)),
        ("versions", versions),
        ("hub", f"{hub['address']} {reached}; cache {hub['cache']}"),
    ]
    write("".join(f"{name:<10}{value}\n" for name, value in lines))
    write("".join(f"\n{sentence}\n" for sentence in entries["advice"]) or "\nNo problems found.\n")


def examine(offline: bool) -> dict[str, Any]:
    """What `mlxgen doctor --json` prints."""
    import mlx.core as mx
    from huggingface_hub import constants

    from mlxgen import blas, cpu_operations, device
    from mlxgen.weights.metal_speed import advice_for_local_models

    library, trouble = None, []
    try:
        library = blas.loaded_library()
    except OptionError as error:
        trouble.append(str(error))
    reached = None if offline or constants.HF_HUB_OFFLINE else _reached(constants.ENDPOINT)
    quick = library is not None and blas.is_quick_for_a_row()
    operations = cpu_operations.available_for()
    versions = {name: _version(name) for name in PACKAGES}
    advice = _advice(device.on_cpu(), library, quick, reached)
    if quick and device.on_cpu() and blas.compiled_part() and not operations:
        advice.append(_about_operations(cpu_operations.compiled_for(), cpu_operations.MLX_VERSION))
    return {
        "system": platform.platform(terse=True) + " " + platform.machine(),
        "python": platform.python_version(),
        "device": device.device_name(),
        "device_setting": os.environ.get("MLXGEN_DEVICE", "").lower() or None,
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "compute_dtype": str(device.compute_dtype(mx.float16)).removeprefix("mlx.core."),
        "blas": library,
        "quick_for_a_row": quick,
        "operations": operations,
        "versions": versions,
        "hub": {"address": constants.ENDPOINT, "reached": reached, "cache": constants.HF_HUB_CACHE},
        "advice": trouble + advice + advice_for_local_models(),
    }


def _advice(on_cpu: bool, blas: str | None, quick_for_a_row: bool, reached: bool | None) -> list[str]:
    advice = []
    if sys.platform == "linux" and blas is None:
        advice.append(
            "Slow: MLX uses its reference BLAS. Unset MLXGEN_BLAS, install OpenBLAS, or set MLXGEN_BLAS to a library."
        )
    if sys.platform == "linux" and blas and not quick_for_a_row:
        advice.append(
            "Decoding is faster where mlxgen was installed with a C compiler: install one (such as gcc),"
            " then install mlxgen again."
        )
    if sys.platform == "darwin" and on_cpu:
        set_so = " Unset MLXGEN_DEVICE." if os.environ.get("MLXGEN_DEVICE") else " Keep its default device, the GPU."
        advice.append("Slow: MLX computes on the CPU." + set_so)
    if sys.platform == "darwin" and platform.machine() != "arm64":
        advice.append("Slow: this Python is not built for Apple silicon. Install an arm64 Python.")
    if reached is False:
        advice.append(
            "The hub was not reached. Check the network. Models that are cached, local or bundled still open."
        )
    return advice


def _ours(entries: dict[str, Any]) -> str:
    """What of mlxgen's own stands beside the BLAS."""
    if not entries["quick_for_a_row"]:
        return ""
    return ", with mlxgen's sgemm" + (" and operations" if entries["operations"] else "")


def _about_operations(compiled_for: str | None, mlx: str) -> str:
    """Why mlxgen's compiled operations are not used, and what to do."""
    if compiled_for not in (None, mlx):
        that_one = install_command(f"mlx[cpu]=={compiled_for}")
        return (
            f"Slower than it could be: mlxgen was compiled for MLX {compiled_for}, but {mlx} is installed."
            f" Install mlxgen again, or that MLX: {that_one}"
        )
    return (
        "Prompts and batches are faster with mlxgen's compiled operations, which are missing or do not fit this MLX:"
        " install a C++ compiler (such as g++) and the newest MLX, then install mlxgen again."
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _reached(address: str) -> bool:
    """Whether the hub answers at all within 5 seconds, even with an error."""
    from huggingface_hub import get_session

    try:
        get_session().head(address, timeout=5)
    except Exception:  # every client library has its own errors for "no"
        return False
    return True
