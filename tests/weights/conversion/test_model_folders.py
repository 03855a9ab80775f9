"""Converting model folders: the same logits and tokens through transformers, mlxgen and mlx-lm."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxgen
from mlxgen.errors import OptionError
from mlxgen.weights import convert
from mlxgen.weights.hub.names import BUNDLED_FOLDER
from mlxgen.weights.load import open_decoder

from ...support import oracles
from ...support.models import LAYOUTS, tiny_gpt2

PROMPT = "Far far away"


TINY = tiny_gpt2()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TINY.write(tmp_path_factory.mktemp("source") / "tales")


def greedy(folder: Path, n: int = 24) -> list[int]:
    return mlxgen.generate(mlxgen.load(str(folder)), PROMPT, max_tokens=n, temperature=0, ignore_eos=True).tokens


def mlx_lm_greedy(folder: Path, n: int = 24) -> list[int]:
    from importlib import import_module

    import mlx_lm

    model, tokenizer = mlx_lm.load(str(folder))
    prompt = tokenizer.encode(PROMPT)
    steps = import_module("mlx_lm.generate").generate_step(mx.array(prompt), model, max_tokens=n)
    return [int(token) for token, _ in steps]


def tensors(folder: Path) -> dict[str, mx.array]:
    found: dict[str, mx.array] = {}
    for file in folder.glob("model*.safetensors"):
        loaded: Any = mx.load(str(file))
        found |= loaded
    return found


def same(a: dict[str, mx.array], b: dict[str, mx.array]) -> bool:
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and mx.array_equal(a[n], b[n]).item() for n in a)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_transformers_mlxgen_and_mlx_lm_choose_the_same_tokens(tmp_path: Path, layout: str) -> None:
    source = TINY.write(tmp_path / "source", layout)
    done = convert(source, tmp_path / "out", verify=True)
    assert done.verification is not None and done.verification.largest_difference == 0
    assert done.dtype == "float32" and done.bytes_before == done.bytes_after and not done.warnings
    prompt = mlxgen.load(str(source)).tokenizer.encode(PROMPT)
    wanted = oracles.torch_greedy(TINY.torch(), prompt, 24)
    assert greedy(tmp_path / "out") == wanted
    assert mlx_lm_greedy(tmp_path / "out") == wanted


def test_the_folder_is_what_mlx_lms_own_convert_writes(tmp_path: Path) -> None:
    import mlx_lm

    source = tiny_gpt2(n_ctx=64, layer_norm_epsilon=1e-5).write(tmp_path / "bare", "bare")
    for bits in (None, 4, 8):
        options = {} if bits is None else {"quantize": True, "q_bits": bits, "q_group_size": 32}
        theirs, ours = tmp_path / f"theirs{bits}", tmp_path / f"ours{bits}"
        mlx_lm.convert(str(source), str(theirs), **options)
        convert(source, ours, quantize=bits, group_size=32 if bits else 64)
        assert same(tensors(ours), tensors(theirs))
        blocks = [json.loads((f / "config.json").read_text()).get("quantization") for f in (ours, theirs)]
        assert blocks[0] == blocks[1]
        assert greedy(theirs, 8) == greedy(ours, 8)  # theirs opens unchanged
        again = convert(theirs, tmp_path / f"again{bits}")
        assert same(tensors(again.folder), tensors(theirs))
    assert mlx_lm_greedy(tmp_path / "ours8", 8) == mlx_lm_greedy(tmp_path / "theirs8", 8)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_type_changes_and_nothing_else(tmp_path: Path, source: Path, dtype: str) -> None:
    done = convert(source, tmp_path / "out", dtype=dtype)
    stored = tensors(done.folder)
    target = getattr(mx, dtype)
    assert {array.dtype for array in stored.values()} == {target} and done.dtype == dtype
    assert json.loads((done.folder / "config.json").read_text())["torch_dtype"] == dtype
    before = tensors(convert(source, tmp_path / "plain").folder)
    assert all(mx.array_equal(array, before[name].astype(target)).item() for name, array in stored.items())
    assert done.bytes_after == sum(array.nbytes for array in stored.values())
    assert done.cache_bytes_per_token == 2 * 2 * 32 * target.size


def test_quantizing_and_leaving_the_head(tmp_path: Path, source: Path) -> None:
    whole = convert(source, tmp_path / "whole", quantize=4, group_size=32)
    kept = convert(source, tmp_path / "kept", quantize=4, group_size=32, keep_head=True, verify=True)
    assert "model.wte.scales" in tensors(whole.folder) and "model.wpe.scales" in tensors(whole.folder)
    names = tensors(kept.folder)
    assert "model.wte.scales" not in names and "model.wpe.scales" not in names
    assert "model.h.1.mlp.c_proj.scales" in names
    assert whole.bytes_after < kept.bytes_after < whole.bytes_before
    assert len(mlx_lm_greedy(kept.folder, 4)) == 4
    assert kept.verification is not None and kept.verification.largest_difference > 0


def test_layers_that_the_groups_do_not_divide_stay_as_they_are(tmp_path: Path, source: Path) -> None:
    done = convert(source, tmp_path / "out", quantize=4, group_size=128)  # only c_proj has rows of 128
    assert "model.h.0.mlp.c_proj.scales" in tensors(done.folder) and greedy(done.folder, 2)
    assert len(mlx_lm_greedy(done.folder, 2)) == 2
    assert "8 layers are not quantized" in done.warnings[0]
    odd = tiny_gpt2(n_embd=12, n_inner=20).write(tmp_path / "odd")
    with pytest.raises(OptionError, match="smaller --group-size"):
        convert(odd, tmp_path / "none", quantize=4)


def test_8_bits_cost_little(tmp_path: Path, source: Path) -> None:
    done = convert(source, tmp_path / "out", quantize=8, group_size=32, verify=True)
    v = done.verification
    assert v is not None and abs(v.perplexity_after / v.perplexity_before - 1) < 0.01


@pytest.mark.skipif(not (BUNDLED_FOLDER / "config.json").is_file(), reason="the bundled model is not built")
def test_8_bits_of_the_bundled_model_keep_its_perplexity(tmp_path: Path) -> None:
    done = convert("fairy-tales", tmp_path / "out", quantize=8)
    # The Frog King, of the Brothers Grimm, in Margaret Hunt's translation of 1884.
    text = (
        "In olden times when wishing still helped one, there lived a king whose daughters were all beautiful, "
        "but the youngest was so beautiful that the sun itself, which has seen so much, was astonished "
        "whenever it shone in her face. Close by the King's castle lay a great dark forest, and under an old "
        "lime-tree in the forest was a well, and when the day was very warm, the King's child went out into "
        "the forest and sat down by the side of the cool fountain, and when she was dull she took a golden "
        "ball, and threw it up on high and caught it, and this ball was her favorite plaything."
    )
    before, after = (mlxgen.score(mlxgen.load(str(name)), text) for name in ("fairy-tales", done.folder))
    assert abs(after.perplexity / before.perplexity - 1) < 0.005


def test_a_quantized_folder_is_quantized_anew_cast_and_unpacked(tmp_path: Path, source: Path) -> None:
    packed = convert(source, tmp_path / "packed", quantize=8, group_size=32).folder
    cast = convert(packed, tmp_path / "cast", dtype="float16")
    assert cast.quantization is not None and cast.quantization.bits == 8
    assert tensors(cast.folder)["model.wte.scales"].dtype == mx.float16
    assert tensors(cast.folder)["model.wte.weight"].dtype == mx.uint32
    again = convert(packed, tmp_path / "again", quantize=4, group_size=32)
    plain = convert(packed, tmp_path / "plain", dequantize=True)
    assert plain.quantization is None and "quantization" not in json.loads((plain.folder / "config.json").read_text())
    ids = mx.array([[1, 2, 3, 4]])
    assert mx.allclose(open_decoder(packed)(ids), open_decoder(plain.folder)(ids), atol=1e-4).item()
    direct = convert(plain.folder, tmp_path / "direct", quantize=4, group_size=32)
    assert same(tensors(again.folder), tensors(direct.folder))


def test_shards_are_written_read_and_opened(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = convert(source, tmp_path / "whole")
    monkeypatch.setattr("mlxgen.weights.files.writer.MAX_SHARD_BYTES", 40_000)
    sharded = convert(source, tmp_path / "sharded").folder
    files = sorted(path.name for path in sharded.glob("model*"))
    assert files[0] == "model-00001-of-00005.safetensors" and files[-1] == "model.safetensors.index.json"
    index = json.loads((sharded / files[-1]).read_text())
    assert index["metadata"]["total_size"] == whole.bytes_after
    assert same(tensors(sharded), tensors(whole.folder))
    assert all((sharded / file).stat().st_size < 41_000 + 4_000 for file in files)
    assert greedy(sharded, 8) == greedy(whole.folder, 8) == mlx_lm_greedy(sharded, 8)
    monkeypatch.setattr("mlxgen.weights.files.writer.MAX_SHARD_BYTES", 5 << 30)
    assert same(tensors(convert(sharded, tmp_path / "joined").folder), tensors(whole.folder))


def test_safetensors_opens_what_is_written(tmp_path: Path, source: Path) -> None:
    from safetensors.numpy import load_file

    folder = convert(source, tmp_path / "out").folder
    theirs, ours = load_file(folder / "model.safetensors"), tensors(folder)
    assert all(np.array_equal(array, np.array(ours[name])) for name, array in theirs.items())


@pytest.mark.parametrize("name", ["spiece.model", "spm.model", "tokenizer.model", "sentencepiece.bpe.model"])
def test_a_sentencepiece_tokenizer_is_kept_under_each_of_its_names(tmp_path: Path, name: str) -> None:
    import sentencepiece

    source = TINY.write(tmp_path / "source")
    (source / "tokenizer.json").unlink()
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer", "extra_ids": 0}')
    with (source / name).open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([PROMPT] * 9), model_writer=file, vocab_size=11, minloglevel=2
        )
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(source / name))
    ours = mlxgen.load(str(convert(source, tmp_path / "out").folder)).tokenizer
    assert ours.encode(PROMPT) == theirs.encode(PROMPT)


def test_a_head_of_its_own_is_kept_and_mlx_lms_limit_is_told(tmp_path: Path) -> None:
    untied = tiny_gpt2(tie_word_embeddings=False)
    # The config that is written calls it tied; the weights differ.
    source = replace(untied, entries=TINY.entries).write(tmp_path / "source")
    done = convert(source, tmp_path / "out", verify=True)
    assert done.verification is not None and done.verification.largest_difference == 0
    assert json.loads((done.folder / "config.json").read_text())["tie_word_embeddings"] is False
    assert "lm_head.weight" in tensors(done.folder)
    (warning,) = done.warnings
    assert "mlx-lm cannot open" in warning and "separate output head" in warning


def test_a_head_equal_to_the_embedding_is_dropped(tmp_path: Path) -> None:
    repeated = {**TINY.weights, "lm_head.weight": TINY.weights["model.wte.weight"]}
    source = replace(TINY, weights=repeated).write(tmp_path / "source")
    done = convert(source, tmp_path / "out")
    assert "lm_head.weight" not in tensors(done.folder) and not done.warnings


def test_the_config_says_what_mlx_lm_needs_and_keeps_what_the_source_says(tmp_path: Path, source: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    entries = json.loads((copy / "config.json").read_text())
    entries["max_position_embeddings"] = entries.pop("n_positions")
    entries |= {"auto_map": {"AutoModel": "stranger.Model"}, "model_file": "stranger.py"}
    entries |= {"task_specific_params": {"x": 1}, "_name_or_path": "/home/someone", "dtype": "float32"}
    (copy / "config.json").write_text(json.dumps(entries))
    (copy / "generation_config.json").write_text('{"eos_token_id": 3}')
    (copy / "README.md").write_text("---\nlicense: apache-2.0\nlanguage: [en]\n---\n# A model\n")
    (copy / "LICENSE").write_text("the licence")
    out = convert(copy, tmp_path / "out").folder
    written = json.loads((out / "config.json").read_text())
    assert written["n_ctx"] == written["n_positions"] == 64 and written["layer_norm_epsilon"] == 1e-5
    assert written["task_specific_params"] == {"x": 1}
    assert not {"_name_or_path", "dtype", "max_position_embeddings", "auto_map", "model_file"} & written.keys()
    assert (out / "generation_config.json").read_text() == '{"eos_token_id": 3}'
    assert (out / "LICENSE").read_text() == "the licence"
    from huggingface_hub import metadata_load

    meta = metadata_load(out / "README.md")
    assert meta["license"] == "apache-2.0" and meta["library_name"] == "mlx" and meta["language"] == ["en"]
    assert "/home/someone" not in (out / "README.md").read_text()


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"dtype": "int8"}, "float32, float16, bfloat16"),
        ({"quantize": 5}, "4 or 8"),
        ({"quantize": 4, "group_size": 48}, "32, 64 or 128"),
        ({"quantize": 4, "dequantize": True}, "cannot be combined"),
        ({"keep_head": True}, "--quantize"),
    ],
)
def test_options_that_cannot_be_used(tmp_path: Path, source: Path, bad: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        convert(source, tmp_path / "out", **bad)
    assert not any(tmp_path.iterdir())
