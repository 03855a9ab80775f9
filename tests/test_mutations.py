"""Damaged files of every format that is read: an error of one line that names the file, or a result."""

from __future__ import annotations

import argparse
import json
import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import mlxgen
from mlxgen.cli.jsonl.input_file import InputFile
from mlxgen.errors import MlxgenError
from mlxgen.weights import convert
from mlxgen.weights.conversion.characters import tokenizer_of
from mlxgen.weights.hub.locate import resolve
from mlxgen.weights.sources.detect import open_checkpoint
from mlxgen.weights.sources.pytorch import read_pickle, state_dict

from .support import flax_checkpoints, tensorflow_checkpoints
from .support import hub as support_hub
from .support.adapters import write_mlx_lm, write_peft
from .support.gguf_files import write_gguf
from .support.llmc import write_llmc
from .support.models import published, tiny_gpt2
from .support.mutations import mutations, refused_or_read

TINY = tiny_gpt2(n_embd=32, n_layer=1, n_positions=16, n_ctx=16, layer_norm_epsilon=1e-5)
LONG = 20  # times as many cases with --runslow


@pytest.fixture
def cases(request: pytest.FixtureRequest) -> Callable[[int], int]:
    """How many cases to run, given a few."""
    return lambda few: few * LONG if request.config.getoption("--runslow") else few


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = TINY.write(tmp_path_factory.mktemp("models") / "tiny", "model.", chat_template="{{ messages }}")
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    (folder / "special_tokens_map.json").write_text('{"pad_token": {"content": "<pad>", "lstrip": true}}')
    (folder / "added_tokens.json").write_text('{"<extra>": 300}')
    return folder


FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
)


def generates(folder: Path) -> Callable[[], object]:
    return lambda: mlxgen.generate(mlxgen.load(str(folder)), [1, 2], max_tokens=2)


def read_or_not_finite(folder: Path) -> Callable[[], object]:
    """Generates; weights that are not finite are told of by the step, which knows no file."""

    def read() -> object:
        model = mlxgen.load(str(folder))
        try:
            return mlxgen.generate(model, [1, 2], max_tokens=2)
        except mlxgen.errors.NumericError:
            return None

    return read


@pytest.mark.parametrize("file", FILES)
def test_model_folders(whole: Path, cases: Callable[[int], int], file: str) -> None:
    data = (whole / file).read_bytes()
    refused = refused_or_read(whole / file, data, cases(120), read_or_not_finite(whole))
    assert refused > 0 or file == "added_tokens.json"


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_quantized_folders(whole: Path, tmp_path: Path, cases: Callable[[int], int], file: str) -> None:
    folder = convert(whole, tmp_path / "packed", quantize=4, group_size=32).folder
    data = (folder / file).read_bytes()
    assert refused_or_read(folder / file, data, cases(120), read_or_not_finite(folder)) > 0


ADAPTERS = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin", "adapters.safetensors")


@pytest.mark.filterwarnings("ignore::mlxgen.errors.ModelWarning")
@pytest.mark.parametrize("file", ADAPTERS)
def test_adapters(whole: Path, tmp_path: Path, cases: Callable[[int], int], file: str) -> None:
    if file == "adapters.safetensors":
        adapter = write_mlx_lm(tmp_path / "adapter", whole, num_layers=1)
    else:
        options = {"rank_pattern": {"h.0.attn.c_attn": 2}, "trainable_token_indices": [1, 2], "use_dora": True}
        adapter = write_peft(tmp_path / "adapter", TINY, pickled=file.endswith(".bin"), **options)

    def read() -> object:
        model = mlxgen.load(str(whole), adapter=adapter)
        try:
            return mlxgen.generate(model, [1, 2], max_tokens=2)
        except mlxgen.errors.NumericError:
            return None

    assert refused_or_read(adapter / file, (adapter / file).read_bytes(), cases(200), read) > 0


@pytest.mark.parametrize("zipped", [True, False])
def test_pytorch_files(tmp_path: Path, cases: Callable[[int], int], zipped: bool) -> None:
    file = tmp_path / "ckpt.pt"
    state = {name: torch.tensor(array) for name, array in list(published(TINY.weights, "bare").items())[:6]}
    kept = {"n_head": 4}
    content = {
        "model": state,
        "model_args": kept,
        "config": argparse.Namespace(**kept),
        "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}},
    }
    torch.save(content, file, _use_new_zipfile_serialization=zipped)

    def read() -> None:
        for tensor in state_dict(read_pickle(file), file).values():
            tensor.read()

    assert refused_or_read(file, file.read_bytes(), cases(300), read) > 0


def reads(source: Path) -> Callable[[], object]:
    return lambda: [tensor.read() for tensor in open_checkpoint(str(source)).tensors.values()]


@pytest.mark.parametrize("suffix", ["index", "data-00000-of-00002"])
def test_tensorflow_checkpoints(tmp_path: Path, cases: Callable[[int], int], suffix: str) -> None:
    shutil.copytree(tensorflow_checkpoints.FOLDER / "sharded", tmp_path / "run")
    model = tensorflow_checkpoints.small()
    folder = tensorflow_checkpoints.add_small_files(tmp_path / "run", model)
    file = folder / f"model-7.{suffix}"
    count = cases(200)
    assert refused_or_read(file, file.read_bytes(), count, reads(folder)) > count * 0.8  # all but what reads the same


def test_flax_weights(tmp_path: Path, cases: Callable[[int], int]) -> None:
    flax_checkpoints.write("tied", tmp_path / "flax")
    file = tmp_path / "flax" / "flax_model.msgpack"
    assert refused_or_read(file, file.read_bytes(), cases(200), reads(file)) > 0


def test_model_files_of_llmc(tmp_path: Path, cases: Callable[[int], int]) -> None:
    file = write_llmc(tmp_path / "gpt2_124M.bin", tiny_gpt2(n_embd=4, n_layer=1, n_positions=8))
    assert refused_or_read(file, file.read_bytes(), cases(200), reads(file)) > 0


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_vocabularies_in_pickles(tmp_path: Path, cases: Callable[[int], int], protocol: int) -> None:
    file = tmp_path / "meta.pkl"
    characters = "abc äöü\n"
    meta = {"stoi": {c: i for i, c in enumerate(characters)}, "itos": dict(enumerate(characters)), "vocab_size": 8}
    data = pickle.dumps(meta, protocol)
    assert refused_or_read(file, data, cases(300), lambda: tokenizer_of(file, 8)) > 0


def test_gguf_files(tmp_path: Path, cases: Callable[[int], int]) -> None:
    file = tmp_path / "tales.gguf"
    write_gguf(file, TINY, "Q8_0", {"token_embd.weight": "F16", "blk.0.ffn_up.weight": "Q4_1"})

    def read() -> object:
        with warnings.catch_warnings(action="error"):  # NumPy's, of numbers that overflow
            return convert(file, tmp_path / "out", force=True)

    assert refused_or_read(file, file.read_bytes(), cases(200), read) > 60


def test_vocabularies_in_json(tmp_path: Path, cases: Callable[[int], int]) -> None:
    file = tmp_path / "vocab.json"
    data = json.dumps({c: i for i, c in enumerate("abc äöü\n")}).encode()
    assert refused_or_read(file, data, cases(300), lambda: tokenizer_of(file, 8)) > 0


@pytest.mark.parametrize("options", [{}, {"max_kv_size": 8, "keep": 2}, {"overflow": "slide"}], ids=str)
def test_sessions(tmp_path: Path, cases: Callable[[int], int], options: dict[str, object]) -> None:
    model = TINY.model()
    session = mlxgen.Session(model, **options)  # type: ignore[arg-type]
    session.generate([1, 2, 3], max_tokens=6, ignore_eos=True)
    file = session.save(tmp_path / "session.safetensors")
    assert refused_or_read(file, file.read_bytes(), cases(150), lambda: mlxgen.Session.load(file, model)) > 100


def test_lines_of_json(tmp_path: Path, cases: Callable[[int], int]) -> None:
    file = tmp_path / "in.jsonl"
    data = b'{"prompt": "a", "id": 1}\n"b"\n{"prompt": [1, 2], "metadata": {"x": [1]}}\n'
    known = ("prompt", "id", "metadata")
    for name, changed in mutations(data, cases(300), 0):
        file.write_bytes(changed)
        for line in InputFile(str(file), "jsonl", "prompt").lines():
            try:
                line.checked_entries(known)
            except MlxgenError as error:
                assert "\n" not in str(error), name


def test_answers_of_the_hub(
    hub: support_hub.Hub, cases: Callable[[int], int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dumps, name, refused = json.dumps, "", 0
    for name, changed in mutations(b'"sha": "0123", "siblings": [{"rfilename": "config.json"}]', cases(40), 0):
        monkeypatch.setattr(support_hub.json, "dumps", lambda info, changed=changed: _spliced(dumps(info), changed))
        monkeypatch.setattr(support_hub.constants, "HF_HUB_CACHE", str(tmp_path / name.partition(":")[0]))
        try:
            resolve("someone/tales")
        except MlxgenError as error:
            assert "\n" not in str(error) and "someone/tales" in str(error), name
            refused += 1
        finally:
            monkeypatch.setattr(support_hub.json, "dumps", dumps)
    assert refused > 0


def _spliced(answer: str, changed: bytes) -> str:
    """The hub's answer with its first entries damaged."""
    return "{" + changed.decode("latin-1") + "," + answer[1:]
