"""Small files that ask for much memory: what reading them takes, measured in a process of its own."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from .support.models import tiny_gpt2

READ = """
import resource, sys
from pathlib import Path
import mlxgen
from mlxgen.errors import MlxgenError
from mlxgen.weights.conversion.characters import tokenizer_of
from mlxgen.weights.sources.gguf import open_gguf
from mlxgen.weights.sources.pytorch import read_pickle
from mlxgen.weights.load import open_model
model = open_model(sys.argv[2])
read = {".pkl": lambda path: tokenizer_of(path, 100), ".pt": read_pickle,
        ".gguf": open_gguf, ".safetensors": lambda path: mlxgen.Session.load(path, model)}
file = Path(sys.argv[1])
if file.suffix == ".pt":
    import torch  # its own memory does not count
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read[file.suffix](file)
except MlxgenError as error:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error)
"""


def memo(folder: Path) -> Path:
    file = folder / "meta.pkl"
    file.write_bytes(b"\x80\x04Nr\xff\xff\xff\x0f.")
    return file


def deflated(folder: Path) -> Path:
    file = folder / "model.pt"
    torch.save({"a": torch.zeros(20_000_000)}, file)
    with zipfile.ZipFile(file) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    return file


def crowded_header(folder: Path) -> Path:
    entries = {f"{at}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for at in range(150_000)}
    text = json.dumps(entries).encode()
    file = folder / "session.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    return file


def crowded_list(folder: Path) -> Path:
    count = 2_000_000
    entry = b"\x15" + bytes(7) + b"tokenizer.ggml.tokens" + struct.pack("<IIQ", 9, 8, count) + bytes(8 * count)
    file = folder / "tales.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry)
    return file


@pytest.mark.parametrize("trap", [memo, deflated, crowded_header, crowded_list], ids=lambda trap: trap.__name__)
def test_a_trap_takes_no_more_than_four_times_its_size(trap: Callable[[Path], Path], tmp_path: Path) -> None:
    file = trap(tmp_path)
    model = tiny_gpt2().write(tmp_path / "tiny")
    done = subprocess.run(
        [sys.executable, "-c", READ, file, model], capture_output=True, text=True, timeout=120, check=True
    )
    grown, _, message = done.stdout.partition(" ")
    unit = 1 if sys.platform == "darwin" else 1024
    assert str(file) in message
    assert int(grown) * unit < 4 * file.stat().st_size + (16 << 20)  # and what the interpreter itself takes
