"""mlx-lm's adapters give the logits that mlx-lm itself computes with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxgen.errors import ModelError
from mlxgen.weights import convert

from ...support.adapters import mlx_lm_logits, write_mlx_lm
from ...support.models import tiny_gpt2
from .logits import assert_close, decoder_with, logits_of

TINY = tiny_gpt2(n_ctx=64, layer_norm_epsilon=1e-5)  # entries that mlx-lm needs
KEYS = ("attn.c_attn", "mlp.c_proj", "model.wte", "model.wpe")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return TINY.write(tmp_path / "model", "model.", chat_template="{{ messages }}")


@pytest.mark.parametrize("keys", [None, KEYS], ids=["every layer", "with embeddings"])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_an_adapter_gives_the_logits_of_mlx_lm(
    tmp_path: Path, model: Path, kind: str, num_layers: int, keys: tuple[str, ...] | None
) -> None:
    adapter = write_mlx_lm(tmp_path / "adapter", model, kind, num_layers=num_layers, keys=keys)
    theirs = mlx_lm_logits(adapter, model)
    assert np.abs(theirs - logits_of(TINY.model().decoder)).max() > 0.01  # it does something
    assert_close(logits_of(decoder_with(model, adapter)), theirs)


def test_a_full_fine_tune(tmp_path: Path, model: Path) -> None:
    adapter = write_mlx_lm(tmp_path / "adapter", model, "full", num_layers=1)
    assert_close(logits_of(decoder_with(model, adapter)), mlx_lm_logits(adapter, model))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_on_packed_weights_the_changed_layers_are_unpacked(
    tmp_path: Path, model: Path, kind: str, packed: bool
) -> None:
    """So nothing of the adapter is rounded to the packing's steps."""
    small = convert(model, tmp_path / "small", quantize=4, group_size=32).folder
    adapter = write_mlx_lm(tmp_path / "adapter", small, kind, num_layers=1)
    decoder = decoder_with(small, adapter, packed=packed)
    assert_close(logits_of(decoder), mlx_lm_logits(adapter, small))
    assert decoder.model.h[1].attn.c_attn.weight.dtype == mx.float32
    assert decoder.model.h[0].attn.c_attn.weight.dtype == (mx.uint32 if packed else mx.float32)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"fine_tune_type": "ia3"}, '"ia3"'),
        ({"fine_tune_type": "dora"}, "has no m"),
        ({"fine_tune_type": "full"}, "no place for model.h.0.attn.c_attn.lora_a"),
        ({"lora_parameters": {"rank": 4, "alpha": 16}}, "scale of lora_parameters is null"),
        ({"lora_parameters": {"rank": 2, "scale": 1.0}}, "has shape [32, 4], not [32, 2]"),
        ({"lora_parameters": 3}, "lora_parameters is 3"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_told_by_its_name(tmp_path: Path, model: Path, changes: dict[str, Any], told: str) -> None:
    adapter = write_mlx_lm(tmp_path / "adapter", model)
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelError) as error:
        decoder_with(model, adapter)
    assert told in str(error.value) and str(adapter) in str(error.value) and "\n" not in str(error.value)


def test_a_low_rank_layer_where_the_model_has_none(tmp_path: Path, model: Path) -> None:
    adapter = write_mlx_lm(tmp_path / "adapter", model)
    file = str(adapter / "adapters.safetensors")
    mx.save_safetensors(file, {"model.ln_f.lora_a": mx.zeros((32, 4)), "model.ln_f.lora_b": mx.zeros((4, 32))})
    with pytest.raises(ModelError, match=r"no place for model\.ln_f\.lora_a, model\.ln_f\.lora_b"):
        decoder_with(model, adapter)
