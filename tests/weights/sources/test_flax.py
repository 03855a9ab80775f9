"""Flax weights, as transformers 4 wrote them, compute what transformers computes with the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch

from mlxgen.weights import convert

from ...cli.running import run
from ...support import flax_checkpoints, oracles
from .foreign_checkpoints import IDS, agree, mlx_logits, refusal


@pytest.mark.parametrize("name", ["tied", "head"])
def test_logits_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    tiny = flax_checkpoints.write(name, tmp_path / "flax")
    expected = oracles.torch_logits(tiny.torch(), IDS)
    for source in (tmp_path / "flax", tmp_path / "flax" / "flax_model.msgpack"):
        done = convert(source, tmp_path / "out", verify=True, force=True)
        assert done.kind == "Flax checkpoint" and done.tokenizer == "the source's"
        assert done.n_parameters == tiny.config.n_parameters
        assert agree(mlx_logits(done.folder), expected)


@pytest.mark.parametrize(("name", "dtype"), [("halves", torch.float16), ("brains", torch.bfloat16)])
def test_types_of_16_bits_are_kept(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    tiny = flax_checkpoints.write(name, tmp_path / "flax")
    done = convert(tmp_path / "flax", tmp_path / "out")
    assert done.dtype == str(dtype).removeprefix("torch.")
    stored: Any = mx.load(str(done.folder / "model.safetensors"))
    for target, array in tiny.weights.items():
        theirs = torch.tensor(array).to(dtype).float().numpy()
        assert np.array_equal(np.array(stored[target].astype(mx.float32)), theirs), target


def test_a_config_elsewhere(tmp_path: Path) -> None:
    tiny = flax_checkpoints.write("tied", tmp_path / "flax")
    config = (tmp_path / "flax" / "config.json").rename(tmp_path / "config.json")
    file = tmp_path / "flax" / "flax_model.msgpack"
    assert "not beside them; give it with --config" in refusal(file, tmp_path / "none")
    done = convert(file, tmp_path / "out", config=config)
    assert agree(mlx_logits(done.folder), oracles.torch_logits(tiny.torch(), IDS))
    config.write_text(json.dumps(tiny.entries | {"n_positions": 99}))
    assert "wpe.weight has shape [64, 4], not [99, 4]" in refusal(file, tmp_path / "none", config=config)


def text(value: str) -> bytes:
    return bytes([0xA0 + len(value)]) + value.encode()


def array(shape: bytes = b"\x91\x02", dtype: str = "float32", n_bytes: int = 8, said: int | None = None) -> bytes:
    """{"a": an array of Flax's}."""
    inner = b"\x93" + shape + text(dtype) + b"\xc4" + bytes([said if said is not None else n_bytes]) + bytes(n_bytes)
    return b"\x81" + text("a") + b"\xc7" + bytes([len(inner), 1]) + inner


BAD = {
    "nothing": (b"", "not a complete file of Flax weights"),
    "no map": (b"\x01", "contains no arrays"),
    "no arrays": (b"\x81" + text("a") + b"\x01", "contains no arrays"),
    "another model": (array(), "not those of a GPT-2"),
    "a type that weights do not have": (array(dtype="int32"), "has type int32"),
    "an unknown type": (array(dtype="posit"), "has type posit"),
    "fewer numbers than the shape": (array(b"\x91\x03"), "not a complete file"),
    "a negative size": (array(b"\x91\xff"), "not a complete file"),
    "a huge shape": (array(b"\x92\xce\xff\xff\xff\xff\xce\xff\xff\xff\xff"), "not a complete file"),
    "a shape that is a number": (array(b"\x02"), "not a complete file"),
    "twenty axes": (array(b"\xdc\x00\x14" + b"\x01" * 20), "not a complete file"),
    "bytes after its end": (array(said=9) + b"\0" * 20, "not a complete file"),
    "chunks": (b"\x81" + text("a") + b"\x81\xb9__msgpack_chunked_array__\xc3", "in chunks"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused(tmp_path: Path, case: str) -> None:
    data, told = BAD[case]
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_head": 2}')
    file = tmp_path / "flax_model.msgpack"
    file.write_bytes(data)
    message = refusal(file, tmp_path / "none")
    assert told in message and str(file) in message


def test_generate_says_the_command_that_converts_it(tmp_path: Path) -> None:
    flax_checkpoints.write("tied", tmp_path / "flax")
    file = tmp_path / "flax" / "flax_model.msgpack"
    for source in (file, tmp_path / "flax"):
        said = run("generate", "-m", str(source), "Once")
        assert said.exit_code == 1 and "a file of Flax weights" in said.stderr
        assert f"convert it with `mlxgen convert {file}`" in said.stderr
