"""`convert --to gguf`: files that the gguf package and transformers read as llama.cpp's own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, AutoTokenizer

import mlxgen
from mlxgen.cli.main import main
from mlxgen.errors import MlxgenError, ModelError, OptionError
from mlxgen.weights import convert
from mlxgen.weights.conversion.gguf_file import quantized_q8_0
from mlxgen.weights.hub.names import BUNDLED_FOLDER

from ...support.gguf_files import gguf_name, write_gguf
from ...support.models import TinyGPT2, letter_tokenizer, tiny_gpt2
from ...support.vocabularies import TEXTS, bert_folder

TINY = tiny_gpt2()
TALL = tiny_gpt2(n_positions=1024)  # transformers reads no other length from a GGUF file
UNTIED = tiny_gpt2(tie_word_embeddings=False, n_inner=64)
IDS = np.random.default_rng(0).integers(0, TINY.config.vocab_size, (1, 40))


def contents(reader: gguf.GGUFReader) -> dict[str, Any]:
    return {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}


def held(file: Path) -> dict[str, np.ndarray]:
    """Every tensor of a file, as the gguf package unpacks it."""
    return {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(
            [int(size) for size in tensor.shape[::-1]]
        )
        for tensor in gguf.GGUFReader(file).tensors
    }


@pytest.mark.parametrize("tiny", [TINY, UNTIED], ids=["tied", "untied"])
@pytest.mark.parametrize(
    ("options", "type"),
    [({}, "F32"), ({"dtype": "float16"}, "F16"), ({"dtype": "bfloat16"}, "BF16"), ({"quantize": 8}, "Q8_0")],
    ids=str,
)
def test_the_gguf_package_reads_what_its_own_writer_would_have_written(
    tmp_path: Path, tiny: TinyGPT2, options: dict[str, Any], type: str
) -> None:
    source = tiny.write(tmp_path / "tales")
    done = convert(source, tmp_path / "ours.gguf", to="gguf", verify=True, **options)
    write_gguf(tmp_path / "theirs.gguf", tiny, type)
    ours, theirs = gguf.GGUFReader(tmp_path / "ours.gguf"), gguf.GGUFReader(tmp_path / "theirs.gguf")
    types = {tensor.name: tensor.tensor_type for tensor in theirs.tensors}
    assert {tensor.name: tensor.tensor_type for tensor in ours.tensors} == types
    wanted = held(tmp_path / "theirs.gguf")
    for name, array in held(tmp_path / "ours.gguf").items():
        assert np.array_equal(array, wanted[name]), name
    entries, expected = contents(ours), contents(theirs)
    assert expected.items() <= entries.items()
    file_type = {"F32": "ALL_F32"}.get(type, f"MOSTLY_{type}")
    assert gguf.LlamaFileType(entries["general.file_type"]).name == file_type
    assert entries["general.name"] == "tales" and entries["general.quantization_version"] == 2
    assert all(tensor.data_offset % 32 == 0 for tensor in ours.tensors)
    assert done.to == "gguf" and done.folder == tmp_path / "ours.gguf" and done.verification is not None
    assert done.verification.largest_difference < (1e-6 if type == "F32" else 0.3)
    assert done.bytes_after == sum(int(tensor.n_bytes) for tensor in ours.tensors)


@pytest.mark.parametrize("options", [{}, {"quantize": 8}], ids=str)
def test_our_reader_and_transformers_read_the_same_logits_back(tmp_path: Path, options: dict[str, Any]) -> None:
    convert(TALL.write(tmp_path / "tales"), tmp_path / "tales.gguf", to="gguf", **options)
    arrays = held(tmp_path / "tales.gguf")
    read = replace(TALL, weights={name: arrays[gguf_name(name)] for name in TALL.weights})
    with torch.no_grad():
        wanted = read.torch()(torch.tensor(IDS)).logits.numpy()
        model = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tales.gguf", dtype=torch.float32).eval()
        theirs = model(torch.tensor(IDS)).logits.numpy()
    ours = mlxgen.load(str(convert(tmp_path / "tales.gguf", tmp_path / "back").folder), dtype="float32")
    np.testing.assert_allclose(np.array(ours.decoder(mx.array(IDS))), wanted, atol=1e-4)
    np.testing.assert_allclose(theirs[..., : wanted.shape[-1]], wanted, atol=1e-4)


def test_packed_folders_of_ours_can_leave(tmp_path: Path) -> None:
    packed = convert(TINY.write(tmp_path / "tales"), tmp_path / "packed", quantize=4, group_size=32).folder
    done = convert(packed, tmp_path / "tales.gguf", to="gguf", dtype="float32", verify=True)
    assert done.verification is not None and done.verification.largest_difference == 0
    assert {tensor.tensor_type.name for tensor in gguf.GGUFReader(done.folder).tensors} == {"F32"}
    assert convert(packed, tmp_path / "half.gguf", to="gguf").dtype == "float32"  # the type of its scales


def test_q8_0_is_rounded_as_llama_cpp_rounds() -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((5000, 64)).astype(np.float32)
    weight[7] = 0
    weight[8, :32] = np.arange(32) + 0.5
    weight[8, 31] = 127
    theirs = gguf.quants.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
    assert np.array_equal(quantized_q8_0(weight).reshape(theirs.shape), theirs)


def test_the_head_can_be_left_unquantized(tmp_path: Path) -> None:
    convert(UNTIED.write(tmp_path / "tales"), tmp_path / "tales.gguf", to="gguf", quantize=8, keep_head=True)
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "tales.gguf").tensors}
    assert types["token_embd.weight"] == types["output.weight"] == "F16" and types["blk.0.ffn_up.weight"] == "Q8_0"


# The tokenizer


def test_transformers_reads_the_bundled_models_tokens(tmp_path: Path) -> None:
    convert("fairy-tales", tmp_path / "tales.gguf", to="gguf", verify=True)
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="tales.gguf")
    ours = mlxgen.load(str(BUNDLED_FOLDER)).tokenizer
    back = mlxgen.load(str(convert(tmp_path / "tales.gguf", tmp_path / "back").folder)).tokenizer
    for text in TEXTS:
        assert back.encode(text) == ours.encode(text), text
        assert theirs(text).input_ids == ours.encode(text), text
    assert theirs.eos_token_id == back.eos_token_id == ours.eos_token_id


def test_added_tokens_padding_start_and_template(tmp_path: Path) -> None:
    library = letter_tokenizer()
    library.add_tokens(["<tool>", "plain"])
    tiny = tiny_gpt2(tokenizer=library, vocab_size=263)  # the last added token has no row, a row has no token
    library.add_tokens(["left out"])
    whole = replace(tiny, entries={**tiny.entries, "vocab_size": 263})
    source = whole.write(tmp_path / "tales", chat_template="{{ messages }}")
    convert(source, tmp_path / "tales.gguf", to="gguf")
    entries = contents(gguf.GGUFReader(tmp_path / "tales.gguf"))
    tokens, types = entries["tokenizer.ggml.tokens"], entries["tokenizer.ggml.token_type"]
    assert len(tokens) == len(types) == 263
    kinds = {token: gguf.TokenType(kind).name for token, kind in zip(tokens, types, strict=True)}
    assert kinds["<|im_start|>"] == kinds["<|endoftext|>"] == "CONTROL" and kinds["plain"] == "USER_DEFINED"
    assert kinds["a"] == "NORMAL" and "tokenizer.ggml.merges" not in entries
    assert entries["tokenizer.chat_template"] == "{{ messages }}"
    assert entries["tokenizer.ggml.add_bos_token"] is False
    back = mlxgen.load(str(convert(tmp_path / "tales.gguf", tmp_path / "back").folder)).tokenizer
    assert back.encode("a plain<|im_end|>") == library.encode("a plain<|im_end|>").ids


def test_the_licence_goes_along(tmp_path: Path) -> None:
    source = TINY.write(tmp_path / "tales")
    (source / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    file = convert(source, tmp_path / "tales.gguf", to="gguf").folder
    assert contents(gguf.GGUFReader(file))["general.license"] == "apache-2.0"
    (tmp_path / "LICENSE").write_text("of something else that is in the same folder")
    (tmp_path / "README.md").write_text("---\nlicense: gpl-3.0\n---\n")
    folder = convert(file, tmp_path / "back").folder
    assert 'license: "apache-2.0"' in (folder / "README.md").read_text() and not (folder / "LICENSE").exists()


# What the format does not hold


def character_source(folder: Path) -> Path:
    source = TINY.write(folder)
    (source / "tokenizer.json").unlink()
    (folder.parent / "vocab.json").write_text(json.dumps({"a": 0, "b": 1}))
    return convert(source, folder.parent / "characters", vocab=folder.parent / "vocab.json").folder


def bert_source(folder: Path) -> Path:
    source = TINY.write(folder)
    (source / "tokenizer.json").unlink()
    config = (source / "config.json").read_text()
    bert_folder(source, {"tokenizer_class": "BertTokenizer"})
    (source / "config.json").write_text(config)
    return source


def spaced_source(folder: Path) -> Path:
    source = TINY.write(folder)
    (source / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    return source


REFUSED = {
    "gelu": (lambda f: tiny_gpt2(activation_function="gelu").write(f), r"the activation gelu \(it has gelu_new\)"),
    "layers": (lambda f: tiny_gpt2(scale_attn_by_inverse_layer_idx=True).write(f), "scale_attn_by_inverse_layer_idx"),
    "unscaled": (lambda f: tiny_gpt2(scale_attn_weights=False).write(f), "scale_attn_weights false"),
    "characters": (character_source, "not a byte-level BPE"),
    "BERT": (bert_source, "not a byte-level BPE"),
    "a space first": (spaced_source, "puts a space before a text"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_llama_cpp_would_compute_differently_is_refused(tmp_path: Path, case: str) -> None:
    write, told = REFUSED[case]
    source = write(tmp_path / "tales")
    with pytest.raises(ModelError, match=f"{told}.*--to hf") as error:
        convert(source, tmp_path / "out.gguf", to="gguf")
    assert "\n" not in str(error.value) and not list(tmp_path.glob("*.gguf")) and not list(tmp_path.glob(".*"))


def test_other_bits_and_names_are_refused(tmp_path: Path) -> None:
    source = TINY.write(tmp_path / "tales")
    with pytest.raises(OptionError, match="llama-quantize"):
        convert(source, to="gguf", quantize=4)
    with pytest.raises(OptionError, match="groups of 32"):
        convert(source, to="gguf", quantize=8, group_size=128)
    with pytest.raises(OptionError, match="add --to gguf"):
        convert(source, tmp_path / "tales.gguf")
    with pytest.raises(MlxgenError, match="is a folder; give the name of a file"):
        convert(source, tmp_path, to="gguf")
    (tmp_path / "notes.gguf").write_text("notes")
    with pytest.raises(MlxgenError, match="already exists; replace it with --force"):
        convert(source, tmp_path / "notes.gguf", to="gguf")
    with pytest.raises(MlxgenError, match="not a GGUF file, so it is not replaced"):
        convert(source, tmp_path / "notes.gguf", to="gguf", force=True)


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    source = TINY.write(tmp_path / "tales")
    target = tmp_path / "made" / "tales.gguf"
    convert(source, target, to="gguf")
    before = target.read_bytes()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, target, to="gguf", dtype="float16", force=True, progress=interrupt)
    assert target.read_bytes() == before and [path.name for path in target.parent.iterdir()] == ["tales.gguf"]
    convert(source, target, to="gguf", dtype="float16", force=True)
    assert len(target.read_bytes()) < len(before)
    convert(target, target, to="gguf", dtype="float32", force=True)  # the source itself


def test_a_file_that_cannot_be_written_leaves_no_folders(tmp_path: Path) -> None:
    source = TINY.write(tmp_path / "tales")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(MlxgenError, match="no space left"):
        convert(source, tmp_path / "new" / "folder" / "tales.gguf", to="gguf", progress=full)
    assert [path.name for path in tmp_path.iterdir()] == ["tales"]


def test_without_a_place_for_temporary_files_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = TINY.write(tmp_path / "tales")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    with pytest.raises(MlxgenError, match=r"temporary folder \(No space left on device\).*TMPDIR"):
        convert(source, tmp_path / "tales.gguf", to="gguf")
    assert not (tmp_path / "tales.gguf").exists()


def test_the_terminal_writes_here_and_says_what_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = str(TINY.write(tmp_path / "tales"))
    result = CliRunner().invoke(main, ["convert", source, "--to", "gguf", "-q", "8"])
    assert result.exit_code == 0 and (tmp_path / "tales-Q8_0.gguf").is_file()
    assert "file        tales-Q8_0.gguf" in result.stdout and "llama-completion -m tales-Q8_0.gguf" in result.stdout
    result = CliRunner().invoke(main, ["convert", source, "--to", "gguf", "--json"])
    shown = json.loads(result.stdout)
    assert shown["folder"] == "tales-F32.gguf" and shown["to"] == "gguf"
    result = CliRunner().invoke(main, ["convert", source, "--to", "gguf", "--upload", "me/tales"])
    assert result.exit_code == 2 and "hf upload" in result.stderr
