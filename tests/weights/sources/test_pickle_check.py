"""Pickles that ask for gigabytes, hours or the whole stack are refused unread; those that writers write are not."""

import io
import pickle
import random
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from mlxgen.errors import ModelError
from mlxgen.weights.conversion.characters import tokenizer_of
from mlxgen.weights.sources.pickle_check import PickleRefused, check_pickle
from mlxgen.weights.sources.pytorch import read_pickle, read_plain_pickle, state_dict

TRAPS = {
    "a huge memo index": b"\x80\x04Nr\xff\xff\xff\x7f.",
    "nested tuples made by DUP": b"\x80\x02)" + b"2\x86" * 60 + b".",
    "nested tuples made through the memo": b"\x80\x02)" + b"".join(b"q\x01h\x01\x86" for _ in range(60)) + b".",
    "those as a key": b"\x80\x02})" + b"".join(b"q\x01h\x01\x86" for _ in range(60)) + b"Ns.",
    "deep nesting as a key": b"\x80\x02})" + b"\x85" * 100_000 + b"Ns.",
    "deep lists": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "a string longer than the file": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"abc.",
    "a frame longer than the file": b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"N.",
    "no end": b"\x80\x04" + b"N" * 100,
    "nothing on the stack": b"\x80\x04\x86.",
    "an unknown opcode": b"\x80\x04\xff.",
    "a list that holds itself": b"\x80\x02]q\x00" + b"h\x00a" * 5000 + b"h\x00\x85.",
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_is_refused_in_one_line(trap: str, tmp_path: Path) -> None:
    vocabulary, weights = tmp_path / "meta.pkl", tmp_path / "ckpt.pt"
    for file in (vocabulary, weights):
        file.write_bytes(TRAPS[trap])
    with pytest.raises(ModelError) as caught:
        tokenizer_of(vocabulary, 100)
    assert str(caught.value).startswith(str(vocabulary)) and "\n" not in str(caught.value)
    with pytest.raises(ModelError) as caught:
        read_pickle(weights)
    assert str(caught.value).startswith(str(weights)) and "\n" not in str(caught.value)


def test_what_pickle_writes_is_read_as_pickle_reads_it(tmp_path: Path) -> None:
    rng = random.Random(0)

    def content(depth: int) -> Any:
        kind = rng.randrange(9 if depth else 5)
        if kind < 5:
            return [None, rng.random(), rng.getrandbits(80) - 2**79, "ä" * rng.randrange(300), True][kind]
        parts = [content(depth - 1) for _ in range(rng.randrange(5))]
        shared = [parts, parts, tuple(parts)]
        return [parts, tuple(parts), {(at, "key"): part for at, part in enumerate(parts)}, shared][kind - 5]

    file = tmp_path / "meta.pkl"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        for _ in range(40):
            whole = content(5)
            file.write_bytes(pickle.dumps(whole, protocol))
            assert read_plain_pickle(file) == whole


def test_a_large_vocabulary_is_read(tmp_path: Path) -> None:
    characters = [chr(number) for number in range(0x4E00, 0x9FFF)]
    meta = {"stoi": {c: i for i, c in enumerate(characters)}, "itos": dict(enumerate(characters))}
    file = tmp_path / "meta.pkl"
    file.write_bytes(pickle.dumps(meta))
    assert read_plain_pickle(file) == meta


@pytest.mark.parametrize("zipped", [True, False])
def test_what_pytorch_saves_is_read(tmp_path: Path, zipped: bool) -> None:
    base = torch.arange(24, dtype=torch.float32)
    tensors = {
        "whole": base,
        "part": base[4:12],
        "turned": base.view(4, 6).T,
        "parameter": torch.nn.Parameter(base[:2].clone()),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(1.5, dtype=torch.bfloat16),
        "halves": torch.ones(3, dtype=torch.float16),
        "mask": torch.ones(2, 2, dtype=torch.bool),
        "wide": torch.ones(2, dtype=torch.float64),
    }
    file = tmp_path / "model.pt"
    torch.save(tensors, file, _use_new_zipfile_serialization=zipped)
    read = state_dict(read_pickle(file), file)
    for name in ("whole", "part", "turned", "parameter", "halves"):
        assert (torch.tensor(read[name].read().tolist()) == tensors[name].float()).all()


def rewritten(file: Path, change: Any, compression: int = zipfile.ZIP_STORED) -> Path:
    """The archive with each record's bytes changed."""
    with zipfile.ZipFile(file) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in records.items():
            archive.writestr(name, change(name, data))
    return file


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    file = tmp_path / "model.pt"
    torch.save({"a": torch.ones(16), "b": torch.zeros(16)}, file)
    return file


def test_compressed_records_are_refused(saved: Path) -> None:
    assert read_pickle(rewritten(saved, lambda _, data: data))["a"].sum() == 16
    with pytest.raises(ModelError, match="compressed records"):
        read_pickle(rewritten(saved, lambda _, data: data, zipfile.ZIP_DEFLATED))


def test_a_record_shorter_than_its_tensor_is_refused(saved: Path) -> None:
    rewritten(saved, lambda name, data: data[:-4] if name.endswith("data/0") else data)
    with pytest.raises(ModelError, match="record 0 holds 60 bytes, and its tensors take 64"):
        read_pickle(saved)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("shape", [(100_000,), (4, 100_000)])
def test_a_tensor_larger_than_its_storage_is_refused(tmp_path: Path, zipped: bool, shape: tuple[int, ...]) -> None:
    file = tmp_path / "model.pt"
    torch.save({"a": torch.zeros(1).expand(shape)}, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ModelError, match="on a storage of 1"):
        read_pickle(file)


def test_a_storage_larger_than_an_old_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    torch.save({"a": torch.zeros(1000)}, file, _use_new_zipfile_serialization=False)
    data = file.read_bytes()
    assert data.count(struct.pack("<H", 1000)) >= 2
    file.write_bytes(data.replace(b"M" + struct.pack("<H", 1000), b"J" + struct.pack("<i", 1 << 30)))
    with pytest.raises(ModelError, match="cut off: its tensors take 4,294,967,296 bytes"):
        read_pickle(file)


def test_a_nested_tensor_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    torch.save({"a": torch.zeros(2, 2).to_sparse()}, file)
    with pytest.raises(ModelError, match=r"model\.pt: "):
        state_dict(read_pickle(file), file)


def test_the_work_of_a_check_is_bounded() -> None:
    with pytest.raises(PickleRefused, match="too long"):
        check_pickle(io.BytesIO(b"\x80\x02" + b"N0" * 500_000 + b"."))
