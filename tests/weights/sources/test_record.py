"""Objects of unknown classes in a pickle become their fields, and nothing of their classes is imported or called."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from mlxgen.errors import ModelError
from mlxgen.weights import convert
from mlxgen.weights.sources.pytorch import read_pickle
from mlxgen.weights.sources.record import Record, fields_of

from ...support import oracles, torch_gpts
from ...support.models import tiny_gpt2
from .foreign_checkpoints import CHARACTERS, IDS, agree, characters, mlx_logits, refusal


def fields_named(**fields: Any) -> Any:
    """An object of a class train_gpt2.GPTConfig, as build-nanogpt's, whose module is there only until it is saved."""
    made = dataclass(type("GPTConfig", (), {"__annotations__": {name: type(v) for name, v in fields.items()}}))
    made.__module__, made.__qualname__ = "train_gpt2", "GPTConfig"
    module = sys.modules["train_gpt2"] = ModuleType("train_gpt2")
    module.GPTConfig = made  # type: ignore[attr-defined]
    return made(**fields)


@pytest.fixture(autouse=True)
def no_module() -> Any:
    yield
    sys.modules.pop("train_gpt2", None)


def save(content: Any, file: Path, **options: Any) -> Path:
    torch.save(content, file, **options)
    sys.modules.pop("train_gpt2", None)
    return file


SIZES = {"block_size": 16, "vocab_size": len(CHARACTERS), "n_layer": 2, "n_head": 4, "n_embd": 32}


class BuildGPT(torch_gpts.GPT):
    """build-nanogpt's model: nanoGPT's with the GELU by tanh."""

    def __init__(self) -> None:
        super().__init__(len(CHARACTERS), 16, 2, 4, 32)
        for block in self.transformer["h"]:
            block.gelu = torch.nn.GELU(approximate="tanh")


@pytest.mark.parametrize("legacy", [False, True])
def test_build_nanogpts_checkpoint_computes_what_its_own_model_computes(tmp_path: Path, legacy: bool) -> None:
    model = BuildGPT()
    content = {"model": model.state_dict(), "config": fields_named(**SIZES), "step": 19072, "val_loss": 3.07}
    file = save(content, tmp_path / "model_19072.pt", _use_new_zipfile_serialization=not legacy)
    done = convert(file, tmp_path / "out", vocab=characters(tmp_path), verify=True)
    assert done.kind == "build-nanogpt checkpoint" and done.assumed_activation == "gelu_new"
    assert agree(mlx_logits(done.folder), torch_gpts.logits(model, IDS))
    assert "train_gpt2" not in sys.modules


def test_nanogpts_config_in_an_object_has_its_own_activation(tmp_path: Path) -> None:
    model = torch_gpts.GPT(len(CHARACTERS), 16, 2, 4, 32)
    config = fields_named(**SIZES, dropout=0.0, bias=True)
    file = save({"model": model.state_dict(), "config": config}, tmp_path / "ckpt.pt")
    done = convert(file, tmp_path / "out", vocab=characters(tmp_path))
    assert done.kind == "nanoGPT checkpoint" and done.assumed_activation == "gelu"
    assert agree(mlx_logits(done.folder), torch_gpts.logits(model, IDS))


def test_sizes_in_the_config_that_do_not_fit(tmp_path: Path) -> None:
    for wrong, told in (
        ({"n_layer": 3}, "do not match config"),
        ({"n_head": "4"}, "n_head"),
        ({"n_head": -1}, "n_head"),
    ):
        content = {"model": BuildGPT().state_dict(), "config": fields_named(**{**SIZES, **wrong})}
        file = save(content, tmp_path / "model.pt")
        assert told in refusal(file, tmp_path / "none", vocab=characters(tmp_path))


def test_a_config_of_transformers_beside_the_weights(tmp_path: Path) -> None:
    tiny = tiny_gpt2(n_embd=16, n_head=2, activation_function="relu", scale_attn_by_inverse_layer_idx=True)
    model = tiny.torch()
    tiny.tokenizer.save(str(tmp_path / "tokenizer.json"))
    expected = oracles.torch_logits(model, IDS)
    for config in (model.config, model.config.to_dict()):
        torch.save({"model_state_dict": model.state_dict(), "config": config}, tmp_path / "best.pt")
        done = convert(tmp_path / "best.pt", tmp_path / "out", force=True)
        assert done.kind == "state dict with its config" and done.assumed_activation is None
        assert agree(mlx_logits(done.folder), expected)


def test_objects_of_fields_are_read_as_their_fields(tmp_path: Path) -> None:
    class Outer:
        pass

    Outer.__module__, Outer.__qualname__ = "train_gpt2", "Outer"
    inner = fields_named(a=1, b="two")
    sys.modules["train_gpt2"].Outer = Outer  # type: ignore[attr-defined]
    outer = Outer()
    outer.inner = inner  # type: ignore[attr-defined]
    content = {"hparams": argparse.Namespace(n=3), "outer": outer, "bare": Outer(), "x": torch.ones(2)}
    read = read_pickle(save(content, tmp_path / "x.pt"))
    assert type(read["outer"]) is Record and "train_gpt2" not in sys.modules
    assert fields_of(read["hparams"]) == {"n": 3} and fields_of(read["bare"]) == {}
    assert fields_of(fields_of(read["outer"])["inner"]) == {"a": 1, "b": "two"}
    assert fields_of({"a": 1}) == {"a": 1} and fields_of([1]) == {} and fields_of(None) == {}


def pickled(*opcodes: bytes) -> bytes:
    """PyTorch's old format with the opcodes as its content: three headers before, the keys of the storages after."""
    import io
    import pickle

    stream = io.BytesIO()
    torch.save({}, stream, _use_new_zipfile_serialization=False)
    whole = stream.getvalue()
    empty = pickle.dumps({}, 2)
    assert whole.count(empty) >= 1
    at = whole.rindex(empty)
    return whole[:at] + b"\x80\x02" + b"".join(opcodes) + b"." + whole[at + len(empty) :]


FIELDS = b"}X\x01\x00\x00\x00aK\x01s"  # {"a": 1}
NEW, BUILD, REDUCE = b")\x81", b"b", b"R"
WITH_ARGUMENT = b"K\x01\x85\x81"
OBJECT = b"cmine\nThing\n"


def test_opcodes_of_the_test_are_what_pytorch_reads(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(pickled(OBJECT, NEW, FIELDS, BUILD))
    assert fields_of(read_pickle(tmp_path / "x.pt")) == {"a": 1}


@pytest.mark.parametrize(
    "opcodes",
    [
        (OBJECT, b")", REDUCE),  # called
        (OBJECT, WITH_ARGUMENT),  # made with an argument
        (b"]", OBJECT, NEW, b"a", OBJECT, b")", REDUCE, b"a"),  # made, and called elsewhere
        (b"]", OBJECT, b"q\x00", NEW, b"a", b"h\x00)", REDUCE, b"a"),  # the same through the memo
        (OBJECT,),  # the class itself
        (b"cos\nsystem\n", NEW),
        (b"cbuiltins\neval\n", NEW, FIELDS, BUILD),
        (b"c__builtin__\neval\n", NEW, FIELDS, BUILD),
        (b"ctorch.jit\nScriptModule\n", NEW, FIELDS, BUILD),
        (b"cnumpy\nndarray\n", NEW, FIELDS, BUILD),
        (b"]", *(b"cmine\nThing%d\n)\x81a" % at for at in range(21))),  # too many classes for a config
        (OBJECT, NEW, b"K\x01K\x02s"),  # filled like a dictionary
    ],
)
def test_anything_that_is_more_than_fields_is_refused(tmp_path: Path, opcodes: tuple[bytes, ...]) -> None:
    file = tmp_path / "x.pt"
    file.write_bytes(pickled(*opcodes))
    with pytest.raises(ModelError) as caught:
        read_pickle(file)
    assert "\n" not in str(caught.value) and str(file) in str(caught.value)


def test_fields_cannot_become_behaviour(tmp_path: Path) -> None:
    """Fields with the names of methods are kept as fields: a second state does not call the first one's."""
    state = b"}X\x0c\x00\x00\x00__setstate__ctorch._utils\n_rebuild_parameter\ns"
    (tmp_path / "x.pt").write_bytes(pickled(OBJECT, NEW, state, BUILD, FIELDS, BUILD))
    assert fields_of(read_pickle(tmp_path / "x.pt")) == {"a": 1}
    for odd in (b"K\x07", b"N", b"]", b"K\x01K\x02\x86"):
        (tmp_path / "x.pt").write_bytes(pickled(OBJECT, NEW, odd, BUILD))
        assert fields_of(read_pickle(tmp_path / "x.pt")) == {}
