"""GGUF files of llama.cpp: the logits and tokens are those of the file's own numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tokenizers
import torch
from click.testing import CliRunner

import mlxgen
from mlxgen.cli.main import main
from mlxgen.errors import MlxgenError, ModelError, OptionError
from mlxgen.weights import convert
from mlxgen.weights.files.headers import read_headers

from ...support.gguf_files import write_gguf
from ...support.models import TinyGPT2, tiny_gpt2
from ...support.vocabularies import TEXTS, gpt2_folder

TINY = tiny_gpt2()
TALL = tiny_gpt2(n_positions=1024)  # transformers reads no other length from a GGUF file
WIDE = tiny_gpt2(n_embd=256, n_layer=1)
UNTIED = tiny_gpt2(tie_word_embeddings=False)
IDS = np.random.default_rng(0).integers(0, TINY.config.vocab_size, (1, 40))


def our_logits(folder: Path) -> np.ndarray:
    return np.array(mlxgen.load(str(folder), dtype="float32").decoder(mx.array(IDS)))


def their_logits(tiny: TinyGPT2) -> np.ndarray:
    with torch.no_grad():
        logits: np.ndarray = tiny.torch()(torch.tensor(IDS)).logits.numpy()
    return logits


@pytest.mark.parametrize(
    ("tiny", "type", "types", "stored", "bits"),
    [
        (TINY, "F32", {}, {"F32"}, None),
        (TINY, "F16", {}, {"F32", "F16"}, None),
        (TINY, "BF16", {}, {"F32", "BF16"}, None),
        (TINY, "Q8_0", {}, {"F32", "F16", "U32"}, 8),
        (TINY, "Q4_0", {}, {"F32", "F16", "U32"}, 4),
        (TINY, "Q4_1", {}, {"F32", "F16", "U32"}, 4),
        (TINY, "Q4_0", {"token_embd.weight": "Q8_0", "position_embd.weight": "Q4_1"}, {"F32", "F16", "U32"}, 4),
        (UNTIED, "Q8_0", {"output.weight": "F16"}, {"F32", "F16", "U32"}, 8),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_logits_are_those_of_the_files_numbers(
    tmp_path: Path, tiny: TinyGPT2, type: str, types: dict[str, str], stored: set[str], bits: int | None
) -> None:
    held = write_gguf(tmp_path / "tales.gguf", tiny, type, types)
    done = convert(tmp_path / "tales.gguf", tmp_path / "out", verify=True)
    assert done.verification is not None and done.verification.largest_difference == 0
    assert done.kind == f"GGUF file, {type}" and not [w for w in done.warnings if "mlx-lm" not in w]
    assert {tensor.dtype for tensor in read_headers([done.folder / "model.safetensors"]).values()} == stored
    assert (done.quantization.bits if done.quantization else None) == bits
    np.testing.assert_allclose(our_logits(done.folder), their_logits(held), atol=1e-4)
    unpacked = convert(tmp_path / "tales.gguf", tmp_path / "plain", dequantize=True, dtype="float32").folder
    np.testing.assert_allclose(our_logits(unpacked), their_logits(held), atol=1e-4)


def test_the_embeddings_of_llama_quantizes_files_of_four_bits(tmp_path: Path) -> None:
    """They have Q6_K, which the gguf package unpacks and does not write: random blocks."""
    import gguf

    kind = gguf.GGMLQuantizationType.Q6_K
    rng = np.random.default_rng(3)
    blocks = rng.integers(0, 256, (WIDE.config.vocab_size, 210), dtype=np.uint8)
    blocks[:, 192:208] = rng.integers(0, 30, (len(blocks), 16), dtype=np.uint8)
    blocks[:, 208:] = rng.uniform(0.0005, 0.001, len(blocks)).astype(np.float16)[:, None].view(np.uint8)
    embedding = gguf.quants.dequantize(blocks, kind)
    real = gguf.quants.quantize

    def quantize(array: np.ndarray, wanted: Any) -> np.ndarray:
        return blocks if wanted == kind else real(array, wanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.quants, "quantize", quantize)
        held = write_gguf(tmp_path / "tales.gguf", WIDE, "Q4_0", {"token_embd.weight": "Q6_K"})
    assert np.array_equal(held.weights["model.wte.weight"], embedding)
    done = convert(tmp_path / "tales.gguf", tmp_path / "out", verify=True)
    np.testing.assert_allclose(our_logits(done.folder), their_logits(held), atol=1e-4)


def test_transformers_reads_the_same_from_the_same_file(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    write_gguf(tmp_path / "tales.gguf", TALL, "Q8_0")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tales.gguf", dtype=torch.float32).eval()
    with torch.no_grad():
        wanted = theirs(torch.tensor(IDS)).logits.numpy()
    ours = our_logits(convert(tmp_path / "tales.gguf", tmp_path / "out").folder)
    np.testing.assert_allclose(ours, wanted[..., : ours.shape[-1]], atol=1e-4)


def test_a_head_that_only_repeats_the_embedding_is_dropped(tmp_path: Path) -> None:
    repeated = {**TINY.weights, "lm_head.weight": TINY.weights["model.wte.weight"]}
    write_gguf(tmp_path / "tales.gguf", replace(TINY, weights=repeated), "Q8_0")
    done = convert(tmp_path / "tales.gguf", tmp_path / "out")
    assert not any("lm_head" in name for name in read_headers([done.folder / "model.safetensors"]))


def test_mlx_lm_opens_what_stays_packed(tmp_path: Path) -> None:
    import mlx_lm

    held = write_gguf(tmp_path / "tales.gguf", TINY, "Q4_0", {"token_embd.weight": "Q8_0"})
    folder = convert(tmp_path / "tales.gguf", tmp_path / "out").folder
    model, _ = mlx_lm.load(str(folder))
    np.testing.assert_allclose(np.array(model(mx.array(IDS)), np.float32), their_logits(held), atol=0.05)


# The tokenizer


def tokenizer_of(folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> tokenizers.Tokenizer:
    """GPT-2's own vocabulary."""
    folder = gpt2_folder(tmp_path_factory.mktemp("gpt2"))
    library = tokenizers.Tokenizer(
        tokenizers.models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    library.add_special_tokens(["<|endoftext|>"])
    return library


def test_texts_get_the_ids_of_gpt2s_own_tokenizer(tmp_path: Path, gpt2: tokenizers.Tokenizer) -> None:
    """In a vocabulary padded to 50,304 rows, as nanoGPT's are."""
    write_gguf(tmp_path / "tales.gguf", tiny_gpt2(tokenizer=gpt2, n_embd=4, n_layer=1, n_head=1, vocab_size=50304))
    model = mlxgen.load(str(convert(tmp_path / "tales.gguf", tmp_path / "out").folder))
    for text in TEXTS:
        assert model.tokenizer.encode(text) == gpt2.encode(text).ids, text
        assert model.tokenizer.decode(gpt2.encode(text).ids) == gpt2.decode(gpt2.encode(text).ids, False)
    assert model.end_tokens == {50256} and model.tokenizer.vocab_size == 50257


def test_start_token_chat_template_and_further_tokens(tmp_path: Path) -> None:
    tokens = [*TINY.tokenizer.get_vocab()]
    ends = {"tokenizer__ggml__eot_token_id": 5, "tokenizer__ggml__add_bos_token": True}
    types = [1] * len(tokens)
    types[TINY.tokenizer.token_to_id("Fa")] = 4
    types[TINY.config.eos_token_ids[0]] = 3
    template = {"tokenizer__chat_template": "{{ messages }}", "tokenizer__ggml__token_type": types}
    write_gguf(tmp_path / "tales.gguf", TINY, **ends, **template)
    model = mlxgen.load(str(convert(tmp_path / "tales.gguf", tmp_path / "out").folder))
    end = TINY.config.eos_token_ids[0]
    assert model.end_tokens == {5, end} and model.tokenizer.start_ids == (end,)
    assert model.tokenizer.chat_template == "{{ messages }}"
    assert model.tokenizer.encode("Far") == [TINY.tokenizer.token_to_id(part) for part in ("Fa", "r")]


def test_another_vocabulary_is_taken_from_elsewhere(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tales.gguf", TINY, tokenizer__ggml__model="llama")
    with pytest.raises(ModelError, match=r'tokenizer is "llama".*--vocab'):
        convert(tmp_path / "tales.gguf", tmp_path / "out")
    TINY.tokenizer.save(str(tmp_path / "tokenizer.json"))
    done = convert(tmp_path / "tales.gguf", tmp_path / "out", vocab=tmp_path / "tokenizer.json")
    assert mlxgen.load(str(done.folder)).tokenizer.encode("Far far away") == TINY.tokenizer.encode("Far far away").ids


# Names, folders, refusals


def test_it_is_named_and_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "GGUF"
    folder.mkdir()
    write_gguf(folder / "tales.Q8_0.gguf", TINY, "Q8_0")
    assert convert(folder / "tales.Q8_0.gguf").name == "tales"
    assert convert(folder, tmp_path / "out").kind == "GGUF file, Q8_0"
    with pytest.raises(ModelError, match=r"mlxgen convert .*tales.Q8_0.gguf"):
        mlxgen.load(str(folder / "tales.Q8_0.gguf"))
    with pytest.raises(ModelError, match=r"mlxgen convert .*tales.Q8_0.gguf"):
        mlxgen.load(str(folder))
    shutil.copy(folder / "tales.Q8_0.gguf", folder / "other.gguf")
    with pytest.raises(ModelError, match=r"several files of weights \(other.gguf, tales.Q8_0.gguf\)"):
        convert(folder, tmp_path / "again")
    with pytest.raises(OptionError, match="leave --config out"):
        convert(folder / "other.gguf", tmp_path / "again", config=tmp_path / "config.json")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"architecture": "llama"}, 'architecture "llama"; mlxgen opens only gpt2'),
    "adapter": ({"general__type": "adapter"}, 'type "adapter", not a complete model'),
    "part": ({"split__count": 3}, "one of 3 parts.*llama-gguf-split --merge"),
    "K type": ({"types": {"blk.0.ffn_up.weight": "Q5_0"}}, "quantized as Q5_0.*blk.0.ffn_up.*llama-quantize .* Q8_0"),
    "no heads": ({"gpt2__attention__head_count": None}, "has no gpt2.attention.head_count"),
    "grouped heads": ({"gpt2__attention__head_count_kv": 1}, "one key for each query head"),
    "other length": ({"gpt2__context_length": 65}, r"do not match its metadata: .*wpe.weight has shape \[64, 32\]"),
    "more layers": ({"gpt2__block_count": 3}, "blk.2.attn_norm.weight is missing"),
    "far more layers": ({"gpt2__block_count": 2**32 - 1}, "blk.2.attn_norm.weight is missing"),
    "fewer layers": ({"gpt2__block_count": 1}, "unexpected blk.1.attn_qkv.weight"),
    "odd heads": ({"gpt2__attention__head_count": 5}, "not divisible by n_head 5"),
    "epsilon": ({"gpt2__attention__layer_norm_epsilon": 0.0}, "between 0 and 1"),
    "words": ({"tokenizer__ggml__pre": "llama-bpe"}, 'splits words as "llama-bpe".*--vocab'),
    "no tokens": ({"tokenizer__ggml__tokens": None}, "has no tokenizer.ggml.tokens"),
    "too few types": ({"tokenizer__ggml__token_type": [1]}, "not have one type for each token"),
    "merges": ({"tokenizer__ggml__merges": ["a b"]}, "joins texts that are not tokens: a b"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_read_is_told_in_one_line(tmp_path: Path, case: str) -> None:
    options, told = REFUSED[case]
    write_gguf(tmp_path / "tales.gguf", TINY, **options)
    with pytest.raises(ModelError, match=told) as error:
        convert(tmp_path / "tales.gguf", tmp_path / "out")
    assert "\n" not in str(error.value) and "tales.gguf" in str(error.value)
    assert not (tmp_path / "out").exists()


def number(at: int, value: int, width: int = 8) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + value.to_bytes(width, "little") + data[at + width :]


def offset_of(name: str, value: int) -> Callable[[bytes], bytes]:
    """Another offset of a tensor's data in the table."""

    def change(data: bytes) -> bytes:
        at = data.index(name.encode()) + len(name)
        n_dimensions = int.from_bytes(data[at : at + 4], "little")
        return number(at + 4 + 8 * n_dimensions + 4, value)(data)

    return change


def size_of(name: str, value: int) -> Callable[[bytes], bytes]:
    return lambda data: number(data.index(name.encode()) + len(name) + 4, value)(data)


DAMAGED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "cut off"),
    "magic": (lambda data: b"GGUX" + data[4:], "not a GGUF file"),
    "version 1": (number(4, 1, 4), "version 1; versions 2 and 3"),
    "big-endian": (lambda data: data[:4] + data[4:8][::-1] + data[8:], "big-endian"),
    "tensors": (number(8, 2**62), "number of tensors"),
    "entries": (number(16, 2**62), "number of entries"),
    "too many entries": (lambda data: number(16, 10_001)(data) + bytes(200_000), "header has 10,001 entries"),
    "long text": (number(24, 2**63), "longer than the file"),
    "half": (lambda data: data[: len(data) // 2], "cut off, or damaged: .* after its end"),
    "in the header": (lambda data: data[:4000], "cut off, or damaged: its header"),
    "last byte": (lambda data: data[:-1], "would end 1 bytes after"),
    "outside": (offset_of("blk.1.ffn_up.weight", 1 << 40), "after its end"),
    "far outside": (offset_of("blk.1.ffn_up.weight", 2**64 - 32), "after its end"),
    "not aligned": (offset_of("blk.1.ffn_up.weight", 33), "table is wrong"),
    "on another": (offset_of("blk.1.ffn_up.weight", 32), "before the end of the tensor before it"),
    "overflow": (size_of("blk.1.ffn_up.weight", 2**63), "table is wrong"),
    "larger": (size_of("output_norm.bias", 2**36), "after its end|before the end"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_told_in_one_line(tmp_path: Path, case: str) -> None:
    change, told = DAMAGED[case]
    file = tmp_path / "tales.gguf"
    write_gguf(file, TINY)
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(MlxgenError, match=told) as error:
        convert(file, tmp_path / "out")
    assert "\n" not in str(error.value) and "tales.gguf" in str(error.value)


def test_the_terminal_says_what_it_read(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tales.gguf", TINY, "Q4_0")
    result = CliRunner().invoke(main, ["convert", str(tmp_path / "tales.gguf"), "--json"])
    shown = json.loads(result.stdout)
    assert shown["kind"] == "GGUF file, Q4_0" and shown["quantization"] == {"bits": 4, "group_size": 32}
    (listed,) = [
        entry
        for line in CliRunner().invoke(main, ["models", "--json"]).stdout.splitlines()
        if (entry := json.loads(line))["name"] == "tales"
    ]
    assert listed["origin"] == {"kind": "GGUF file, Q4_0", "source": str(tmp_path / "tales.gguf"), "revision": None}
    text = CliRunner().invoke(main, ["models"]).stdout
    assert f"4 bits, from {tmp_path / 'tales.gguf'} (GGUF file, Q4_0)" in text
