"""llm.c's model files compute what transformers computes with their weights; its other files are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import mlxgen
from mlxgen.weights import convert
from mlxgen.weights.files.recognition import OTHER_LLMC_FILES
from mlxgen.weights.hub.converted import converted_folder

from ...cli.running import run
from ...support import oracles
from ...support.llmc import write_llmc
from ...support.models import TinyGPT2, tiny_gpt2
from ...support.vocabularies import gpt2_folder
from .foreign_checkpoints import IDS, agree, mlx_logits, refusal

TINY = tiny_gpt2(n_embd=16, n_layer=2, n_head=4, n_positions=16)


@pytest.fixture
def vocab(tmp_path: Path) -> Path:
    TINY.tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def rounded(model: TinyGPT2, dtype: torch.dtype) -> TinyGPT2:
    weights = {name: torch.tensor(array).to(dtype).float().numpy() for name, array in model.weights.items()}
    return TinyGPT2(model.entries, weights, model.tokenizer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_those_of_transformers(tmp_path: Path, vocab: Path, dtype: torch.dtype) -> None:
    file = write_llmc(tmp_path / "model_00001000.bin", TINY, dtype)
    done = convert(file, tmp_path / "out", vocab=vocab, verify=True)
    assert done.kind == "llm.c checkpoint" and done.dtype == str(dtype).removeprefix("torch.")
    assert done.n_parameters == TINY.config.n_parameters  # without the rows of padding
    assert agree(mlx_logits(done.folder), oracles.torch_logits(rounded(TINY, dtype).torch(), IDS))
    assert mlxgen.load(str(done.folder)).config.activation_function == "gelu_new"
    assert done.verification is not None and done.verification.largest_difference == 0


def test_a_folder_of_llmcs_files(tmp_path: Path, vocab: Path) -> None:
    folder = tmp_path / "log124M"
    folder.mkdir()
    write_llmc(folder / "model_00001000.bin", TINY)
    (folder / "state_00001000_00000.bin").write_bytes(np.array([20240527, 1], "<i4").tobytes())
    assert agree(
        mlx_logits(convert(folder, tmp_path / "out", vocab=vocab).folder), oracles.torch_logits(TINY.torch(), IDS)
    )
    write_llmc(folder / "model_00002000.bin", TINY)
    assert "several files of weights (model_00001000.bin, model_00002000.bin)" in refusal(folder, tmp_path / "none")


def changed(file: Path, at: int, value: int) -> Path:
    header = np.frombuffer(file.read_bytes(), "<i4").copy()
    header[at] = value
    file.write_bytes(header.tobytes())
    return file


@pytest.mark.parametrize(
    ("at", "value", "told"),
    [
        (1, 1, "version 1"),
        (1, 4, "version 4"),
        (1, 5, "asks for"),
        (2, 17, "asks for"),
        (2, 0, "damaged (n_positions 0)"),
        (3, 385, "damaged (385 tokens in 384 rows)"),
        (4, 2**31 - 1, "asks for"),
        (4, -1, "damaged (n_layer -1)"),
        (5, 5, "n_embd 16 is not divisible by n_head 5"),
        (6, 2**31 - 1, "asks for"),
        (7, 2**31 - 1, "asks for"),
    ],
)
def test_a_wrong_header_is_refused_before_anything_is_read(tmp_path: Path, at: int, value: int, told: str) -> None:
    file = changed(write_llmc(tmp_path / "gpt2_124M.bin", TINY), at, value)
    message = refusal(file, tmp_path / "none")
    assert told in message and str(file) in message


@pytest.mark.parametrize("cut", [100, 1024, -1])
def test_a_file_that_is_cut_off_or_too_long(tmp_path: Path, cut: int) -> None:
    file = write_llmc(tmp_path / "gpt2_124M.bin", TINY)
    whole = file.read_bytes()
    file.write_bytes(whole[:cut])
    assert "cut off" in (message := refusal(file, tmp_path / "none")) or "asks for" in message
    file.write_bytes(whole + b"\0")
    assert f"has {len(whole) + 1:,} bytes, and its header asks for {len(whole):,}" in refusal(file, tmp_path / "none")


@pytest.mark.parametrize("magic", OTHER_LLMC_FILES)
def test_other_files_of_llmc_are_named(tmp_path: Path, magic: int) -> None:
    file = tmp_path / "gpt2_tokenizer.bin"
    file.write_bytes(np.array([magic, 2, *[0] * 254], "<i4").tobytes())
    message = refusal(file, tmp_path / "none")
    assert OTHER_LLMC_FILES[magic] in message and "give the file of weights, such as gpt2_124M.bin" in message


def test_generate_says_the_command_that_converts_it(tmp_path: Path) -> None:
    file = write_llmc(tmp_path / "gpt2_124M.bin", TINY)
    said = run("generate", "-m", str(file), "Once")
    assert said.exit_code == 1
    assert said.stderr == f"Error: {file}: is a checkpoint of llm.c; convert it with `mlxgen convert {file}`\n"


@pytest.mark.usefixtures("no_network")
def test_gpt2s_tokenizer_is_taken_from_a_model_on_this_machine_and_said(tmp_path: Path) -> None:
    tiny = tiny_gpt2(n_embd=4, n_layer=1, n_head=2, n_positions=8, vocab_size=50257)
    file = write_llmc(tmp_path / "gpt2_124M.bin", tiny)
    assert "GPT-2's cannot be downloaded" in refusal(file, tmp_path / "none")
    there = tiny.write(converted_folder() / "my-gpt2")  # the size of GPT-2's vocabulary, but with another one
    assert "GPT-2's cannot be downloaded" in refusal(file, tmp_path / "none")
    (there / "tokenizer.json").unlink()
    gpt2_folder(there)
    done = convert(file, tmp_path / "out")
    assert done.tokenizer == "GPT-2's, from my-gpt2"
    model = mlxgen.load(str(done.folder))
    assert model.tokenizer.encode("Hello world") == [15496, 995] and model.end_tokens == {50256}
