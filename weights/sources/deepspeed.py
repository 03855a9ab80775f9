"""DeepSpeed's checkpoints: the file with the whole model, and why there is none.

A checkpoint is a folder with the file "latest", which names the folder beside it that has the weights. Up to ZeRO-2,
every process has the whole model, and mp_rank_00_model_states.pt is all of it. With ZeRO-3, each has a part.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from mlxgen.errors import ModelError
from mlxgen.regular_file import open_regular
from mlxgen.weights.files.model_folder import DEEPSPEED_SCRIPT

WHOLE = "mp_rank_00_model_states.pt"
PART = re.compile(r"zero_pp_rank_\d+_mp_rank_\d+_model_states\.pt")
OPTIMIZER = re.compile(r"\w+_optim_states\.pt")


def find_states(folder: Path) -> Path | None:
    """The file with the whole model in DeepSpeed's checkpoint, or None. Raises ModelError for one in parts."""
    inner = folder / _latest(folder)
    file = inner / WHOLE
    if any(PART.fullmatch(path.name) for path in inner.glob("*_model_states.pt")):
        raise ModelError(_in_parts(folder, folder))
    if len(list(inner.glob("mp_rank_*_model_states.pt"))) > 1:
        raise ModelError(
            f"{inner}: its layers are split between processes (mp_rank_01 and on), which mlxgen cannot join"
        )
    return file if file.is_file() else None


def refuse_part(file: Path) -> None:
    """Raise ModelError for a file of DeepSpeed's that has only a part of a model, or none of it."""
    if PART.fullmatch(file.name):
        top = next((folder for folder in list(file.parents)[:2] if (folder / DEEPSPEED_SCRIPT).is_file()), file.parent)
        raise ModelError(_in_parts(file, top))
    if OPTIMIZER.fullmatch(file.name):
        raise ModelError(f"{file}: is the state of DeepSpeed's optimizer; give the {WHOLE} beside it")


def _latest(folder: Path) -> str:
    """The folder that the file "latest" names; "." if there is none."""
    try:
        with open_regular(folder / "latest") as file:
            name = file.read(256).decode().strip()
    except (OSError, UnicodeDecodeError):
        return "."
    return name if re.fullmatch(r"\w[\w.-]*", name) else "."


def _in_parts(what: Path, top: Path) -> str:
    folder, whole, config = (shlex.quote(str(path)) for path in (top, top / "whole", top / "config.json"))
    beside = f" --config {config} --vocab {folder}" if (top / "config.json").is_file() else " --config FILE"
    return (
        f"{what}: is a ZeRO-3 checkpoint of DeepSpeed, where each process has a part of the weights; join them with "
        f"`python {shlex.quote(str(top / DEEPSPEED_SCRIPT))} {folder} {whole}`, and then "
        f"`mlxgen convert {whole}{beside}`"
    )
