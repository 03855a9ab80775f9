"""`convert --to hf`: transformers opens the folder, with the same logits and the same tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

import mlxgen
from mlxgen.cli.main import main
from mlxgen.errors import MlxgenError, OptionError
from mlxgen.weights import convert
from mlxgen.weights.hub.names import BUNDLED_FOLDER

from ...support.models import LAYOUTS, TinyGPT2, tiny_gpt2
from ...support.vocabularies import TEXTS, gpt2_folder

TINY = tiny_gpt2()
UNTIED = tiny_gpt2(tie_word_embeddings=False, n_inner=48, activation_function="relu")
SCALED = tiny_gpt2(scale_attn_by_inverse_layer_idx=True, activation_function="gelu")
IDS = np.random.default_rng(0).integers(0, TINY.config.vocab_size, (1, 40))


def their_logits(model: Any) -> np.ndarray:
    with torch.no_grad():
        logits: np.ndarray = model.eval().float()(torch.tensor(IDS)).logits.numpy()
    return logits


def opened(folder: Path) -> Any:
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return model


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tiny", [TINY, UNTIED, SCALED], ids=["tied", "untied", "scaled"])
def test_transformers_computes_the_same(tmp_path: Path, tiny: TinyGPT2, layout: str) -> None:
    done = convert(tiny.write(tmp_path / "tales", layout), tmp_path / "out", to="hf", verify=True)
    assert done.to == "hf" and not done.warnings
    assert done.verification is not None and done.verification.largest_difference == 0
    np.testing.assert_allclose(their_logits(opened(done.folder)), their_logits(tiny.torch()), atol=1e-4)


def test_the_tensors_are_those_that_transformers_saves(tmp_path: Path) -> None:
    UNTIED.torch().save_pretrained(tmp_path / "theirs")
    ours = convert(tmp_path / "theirs", tmp_path / "mlx", vocab=tokenizer_file(tmp_path)).folder
    again = convert(ours, tmp_path / "ours", to="hf").folder
    with (
        safe_open(tmp_path / "theirs" / "model.safetensors", "np") as theirs,
        safe_open(again / "model.safetensors", "np") as written,
    ):
        assert set(theirs.keys()) == set(written.keys()) and written.metadata() == {"format": "pt"}
        assert all(np.array_equal(theirs.get_tensor(name), written.get_tensor(name)) for name in theirs.keys())  # noqa: SIM118
    files = {path.name for path in again.iterdir()}
    assert {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"} <= files


def tokenizer_file(folder: Path) -> Path:
    TINY.tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_packed_weights_are_unpacked_in_the_type_that_is_asked_for(tmp_path: Path, dtype: str) -> None:
    packed = convert(TINY.write(tmp_path / "tales"), tmp_path / "packed", quantize=8, group_size=32).folder
    done = convert(packed, tmp_path / "out", to="hf", dtype=dtype)
    assert done.quantization is None and done.dtype == dtype
    entries = json.loads((done.folder / "config.json").read_text())
    assert "quantization" not in entries and "quantization_config" not in entries
    model = opened(done.folder)
    assert str(model.dtype) == f"torch.{dtype}"
    ours = np.array(mlxgen.load(str(packed), dtype="float32").decoder(mx.array(IDS)))
    tolerance = {"float32": 1e-4, "float16": 0.02, "bfloat16": 0.2}[dtype]
    np.testing.assert_allclose(their_logits(model), ours, atol=tolerance)


@pytest.mark.parametrize("kind", ["bundled", "tokenizer.json alone", "vocab.json and merges.txt"])
def test_texts_get_the_same_ids(tmp_path: Path, kind: str) -> None:
    source = BUNDLED_FOLDER
    if kind == "tokenizer.json alone":
        source = TINY.write(tmp_path / "tales")
    elif kind != "bundled":
        source = tiny_gpt2(vocab_size=50257, n_embd=4, n_layer=1, n_head=1).write(tmp_path / "tales")
        (source / "tokenizer.json").unlink()
        gpt2_folder(source)
    folder = convert(source, tmp_path / "out", to="hf").folder
    ours, theirs = mlxgen.load(str(source)), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert theirs(text).input_ids == ours.tokenizer.with_start(ours.tokenizer.encode(text)), text
    assert theirs.eos_token_id in ours.end_tokens


def test_greedy_answers_end_where_ours_do(tmp_path: Path) -> None:
    folder = convert("fairy-tales", tmp_path / "out", to="hf", dtype="float32").folder
    theirs, tokenizer = opened(folder), AutoTokenizer.from_pretrained(folder)
    given = tokenizer("Once upon a time", return_tensors="pt")
    answer = theirs.generate(**given, max_new_tokens=20, do_sample=False)[0, given.input_ids.shape[1] :]
    ours = mlxgen.generate(mlxgen.load(str(folder)), "Once upon a time", max_tokens=20, temperature=0)
    assert ours.tokens == answer.tolist()


def test_a_generation_config_is_kept(tmp_path: Path) -> None:
    source = TINY.write(tmp_path / "tales")
    (source / "generation_config.json").write_text('{"eos_token_id": [3, 5]}')
    folder = convert(source, tmp_path / "out", to="hf").folder
    assert AutoModelForCausalLM.from_pretrained(folder).generation_config.eos_token_id == [3, 5]


def test_its_name_says_the_format_and_mlxgen_opens_it(tmp_path: Path) -> None:
    source = TINY.write(tmp_path / "tales")
    assert convert(source, to="hf").name == "tales-hf"
    done = convert(source, to="hf", dtype="float16")
    assert done.name == "tales-float16-hf" and mlxgen.load(done.name).config == TINY.config
    with pytest.raises(MlxgenError, match="already exists; replace it with --force"):
        convert(source, to="hf")
    assert "transformers" in (done.folder / "README.md").read_text()


def test_it_is_not_quantized(tmp_path: Path) -> None:
    source = TINY.write(tmp_path / "tales")
    with pytest.raises(OptionError, match="not quantized"):
        convert(source, tmp_path / "out", to="hf", quantize=4)
    with pytest.raises(OptionError, match="to must be one of mlx, hf, gguf"):
        convert(source, tmp_path / "out", to="onnx")
    result = CliRunner().invoke(main, ["convert", str(source), "--to", "onnx"])
    assert result.exit_code == 2
