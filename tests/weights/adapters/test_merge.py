"""A model with an adapter: loaded, converted, told apart from the one without."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxgen
from mlxgen.errors import MlxgenError, ModelError
from mlxgen.weights import convert
from mlxgen.weights.files.origin import read_origin
from mlxgen.weights.load import open_decoder

from ...support.adapters import IDS, mlx_lm_logits, peft_logits, write_mlx_lm, write_peft
from ...support.models import byte_tokenizer, tiny_gpt2
from .logits import assert_close, decoder_with, logits_of

TINY = tiny_gpt2(n_ctx=64, layer_norm_epsilon=1e-5)  # entries that mlx-lm needs


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return TINY.write(tmp_path / "model", "model.", chat_template="{{ messages }}")


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return write_peft(tmp_path / "adapter", TINY, target_modules=["c_attn", "c_fc"], modules_to_save=["lm_head"])


def test_a_loaded_model_has_the_adapter(model: Path, adapter: Path) -> None:
    loaded = mlxgen.load(str(model), adapter=adapter)
    assert_close(np.array(loaded.decoder(mx.array([IDS]))[0]), peft_logits(adapter, TINY))
    assert loaded.label == f"{model} with {adapter}" and loaded.name == str(model)


def test_a_converted_model_is_the_merged_one(tmp_path: Path, model: Path, adapter: Path) -> None:
    done = convert(model, tmp_path / "out", adapter=adapter, verify=True)
    assert_close(logits_of(open_decoder(done.folder)), peft_logits(adapter, TINY))
    assert done.verification is not None and done.verification.largest_difference < 1e-4
    assert done.adapter == f"{adapter} (LoRA of PEFT)"
    words = f"with the adapter {adapter} (LoRA of PEFT)"
    assert words in (done.folder / "README.md").read_text()
    origin = read_origin(done.folder)
    assert origin is not None and words in origin.kind
    assert not (done.folder / "adapter_config.json").exists()


def test_a_converted_model_opens_in_mlx_lm_as_with_its_adapter(tmp_path: Path, model: Path) -> None:
    from mlx_lm.utils import load_model

    adapter = write_mlx_lm(tmp_path / "lora", model)
    done = convert(model, tmp_path / "out", adapter=adapter)
    merged, _ = load_model(done.folder)
    assert_close(np.array(merged(mx.array([IDS]))[0]), mlx_lm_logits(adapter, model))


def test_the_default_name_has_both(model: Path, adapter: Path) -> None:
    assert convert(model, adapter=adapter).name == "model-adapter"
    assert convert(model, adapter=adapter, quantize=4, group_size=32).name == "model-adapter-4bit"


@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
def test_a_packed_source_is_packed_again_and_says_so(tmp_path: Path, model: Path, mode: str) -> None:
    """The changed layers as MLX quantizes what mlx-lm fuses, the others bit for bit as they are."""
    from mlx_lm.tuner.utils import load_adapters
    from mlx_lm.utils import load_model, quantize_model, save_config

    plain, config = load_model(model)
    small, config = quantize_model(plain, config, group_size=32, bits=4, mode=mode)
    folder = tmp_path / "small"
    TINY.write(folder, "model.")
    mx.save_safetensors(str(folder / "model.safetensors"), dict(_flat(small)))
    save_config(config, folder / "config.json")
    adapter = write_mlx_lm(tmp_path / "lora", folder, num_layers=1, keys=["attn.c_attn"])
    done = convert(folder, tmp_path / "out", adapter=adapter, verify=True)
    assert any("quantized again" in warning for warning in done.warnings)
    written = mx.load(str(done.folder / "model.safetensors"))
    theirs, _ = load_model(folder)
    load_adapters(theirs, str(adapter))
    fused = {f"model.h.1.attn.c_attn.{name}": array for name, array in theirs.model.h[1].attn.c_attn.fuse().items()}
    for name, array in dict(_flat(small)).items():
        if not name.startswith("model.h.1.attn.c_attn.") or name.endswith(".bias"):
            assert mx.array_equal(written[name], array), name
    ours, wanted = (_unpacked(part, mode) for part in (written, fused))
    assert np.mean(np.abs(ours - wanted) > 1e-4) < 0.01  # numbers that lie between two steps may go to either
    exact = convert(folder, tmp_path / "exact", adapter=adapter, dequantize=True, dtype="float32").folder
    np.testing.assert_allclose(logits_of(open_decoder(exact)), logits_of(decoder_with(folder, adapter)), atol=1e-4)


def _unpacked(tensors: Any, mode: str) -> Any:
    parts = [tensors.get(f"model.h.1.attn.c_attn.{kind}") for kind in ("weight", "scales", "biases")]
    return np.array(mx.dequantize(*parts, group_size=32, bits=4, mode=mode).astype(mx.float32))


def _flat(module: Any) -> Any:
    from mlx.utils import tree_flatten

    return tree_flatten(module.parameters())


def test_a_session_belongs_to_the_model_with_its_adapter(tmp_path: Path, model: Path) -> None:
    """Even where the adapter changes none of the numbers that are sampled for the fingerprint."""
    adapter = write_peft(
        tmp_path / "tokens", TINY, trainable_token_indices=[1], target_modules=["c_attn"], layers_to_transform=[0]
    )
    with_it, without = mlxgen.load(str(model), adapter=adapter), mlxgen.load(str(model))
    session = mlxgen.Session(with_it)
    session.generate("Far", max_tokens=2)
    file = session.save(tmp_path / "session.safetensors")
    mlxgen.Session.load(file, mlxgen.load(str(model), adapter=adapter))
    with pytest.raises(MlxgenError, match="another model") as error:
        mlxgen.Session.load(file, without)
    assert str(adapter) in str(error.value)


def test_the_tokenizer_of_an_adapter_comes_first(tmp_path: Path, model: Path, adapter: Path) -> None:
    assert mlxgen.load(str(model), adapter=adapter).tokenizer.chat_template == "{{ messages }}"
    byte_tokenizer().save(str(adapter / "tokenizer.json"))
    (adapter / "tokenizer_config.json").write_text('{"chat_template": "its own"}')
    assert mlxgen.load(str(model), adapter=adapter).tokenizer.chat_template == "its own"
    done = convert(model, tmp_path / "out", adapter=adapter)
    assert done.tokenizer == "the adapter's"
    assert mlxgen.load(str(done.folder)).tokenizer.chat_template == "its own"


def test_one_layer_at_a_time_is_merged(tmp_path: Path) -> None:
    """The stored numbers do not stay in memory beside the merged ones."""
    wide = tiny_gpt2(n_embd=256, n_layer=6, n_ctx=64, layer_norm_epsilon=1e-5)
    model = wide.write(tmp_path / "wide", "model.")
    adapter = write_mlx_lm(tmp_path / "lora", model, num_layers=6)

    def peak(**options: Any) -> int:
        gc.collect()
        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        loaded = mlxgen.load(str(model), **options)
        assert loaded.config.n_layer == 6
        return mx.get_peak_memory() - before

    largest = 4 * 1024 * 256  # bytes of mlp.c_fc
    assert peak(adapter=adapter) < peak() + 5 * largest


@pytest.mark.parametrize("whole", ["wte", "lm_head"])
def test_a_packed_model_whose_head_becomes_its_own(tmp_path: Path, model: Path, whole: str) -> None:
    small = convert(model, tmp_path / "small", quantize=8, group_size=32).folder
    adapter = write_peft(tmp_path / "adapter", TINY, modules_to_save=[whole])
    packed, unpacked = (logits_of(decoder_with(small, adapter, packed=packed)) for packed in (True, False))
    assert_close(packed, unpacked)
    exact = convert(small, tmp_path / "exact", adapter=adapter, dequantize=True).folder
    assert_close(logits_of(open_decoder(exact)), unpacked)


def test_a_damaged_tokenizer_of_an_adapter_is_told_by_its_name(model: Path, adapter: Path) -> None:
    (adapter / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError) as error:
        mlxgen.load(str(model), adapter=adapter)
    assert str(adapter) in str(error.value) and f"{model}:" not in str(error.value)
