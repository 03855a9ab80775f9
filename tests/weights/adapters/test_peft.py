"""PEFT's adapters give the logits of PEFT's merge_and_unload, whatever its options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from mlxgen.errors import ModelError, ModelWarning

from ...support.adapters import peft_logits, write_peft
from ...support.models import TinyGPT2, tiny_gpt2
from ...support.oracles import torch_logits
from .logits import IDS, assert_close, decoder_with, logits_of

TINY = tiny_gpt2()
UNTIED = tiny_gpt2(tie_word_embeddings=False)
LAYERS = ["c_attn", "c_proj", "c_fc"]

CASES: dict[str, dict[str, Any]] = {
    "fan_in_fan_out": {"target_modules": LAYERS, "fan_in_fan_out": True},
    "no fan_in_fan_out": {"target_modules": LAYERS, "fan_in_fan_out": False},
    "rank-stabilised": {"target_modules": LAYERS, "use_rslora": True},
    "DoRA": {"target_modules": LAYERS, "use_dora": True, "fan_in_fan_out": True},
    "patterns": {
        "target_modules": LAYERS,
        "rank_pattern": {"c_fc": 2, r"h\.1\.attn\.c_.*": 6},
        "alpha_pattern": {"^transformer.h.0.attn.c_attn": 3, "c_proj": 5},
        "use_rslora": True,
    },
    "one layer": {"layers_to_transform": [1], "layers_pattern": "h"},
    "all biases": {"bias": "all"},
    "biases of the layers": {"target_modules": LAYERS, "bias": "lora_only"},
    "a bias in B": {"lora_bias": True, "target_modules": LAYERS},
    "embeddings": {"target_modules": ["wte", "wpe", "c_attn"]},
    "embeddings, DoRA": {"target_modules": ["wte", "wpe"], "use_dora": True},
    "head": {"target_modules": ["lm_head"]},
    "head and embedding": {"target_modules": ["lm_head", "wte"]},
    "trained embedding": {"modules_to_save": ["wte"]},
    "trained head": {"modules_to_save": ["lm_head"]},
    "trained embedding and head": {"modules_to_save": ["wte", "lm_head", "ln_f", "wpe"]},
    "trained embedding, head by LoRA": {"modules_to_save": ["wte"], "target_modules": ["lm_head", "c_attn"]},
    "trained embedding, to stay tied": {"modules_to_save": ["wte"], "ensure_weight_tying": True},
    "trained layers": {"modules_to_save": ["c_fc", "ln_1"]},
    "trained tokens": {"trainable_token_indices": [7, 1, 250]},
    "trained tokens by name": {"trainable_token_indices": {"wte": [0, 5]}},
}


def config_of(folder: Path) -> dict[str, Any]:
    entries: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text())
    return entries


@pytest.mark.filterwarnings("ignore::mlxgen.errors.ModelWarning")
@pytest.mark.parametrize(
    "case", [*CASES, *(f"{name}, untied" for name in CASES if "embedding" in name or "head" in name)]
)
def test_an_adapter_gives_the_logits_of_merge_and_unload(tmp_path: Path, case: str) -> None:
    base = UNTIED if case.endswith(", untied") else TINY
    model = base.write(tmp_path / "model")
    adapter = write_peft(tmp_path / "adapter", base, **CASES[case.removesuffix(", untied")])
    ours, theirs = logits_of(decoder_with(model, adapter)), peft_logits(adapter, base)
    assert np.abs(theirs - torch_logits(base.torch(), IDS)).max() > 0.01  # it does something
    assert_close(ours, theirs)


def test_a_pickled_adapter_is_read_without_running_it(tmp_path: Path) -> None:
    model = TINY.write(tmp_path / "model")
    adapter = write_peft(tmp_path / "adapter", TINY, pickled=True)
    assert not (adapter / "adapter_model.safetensors").exists()
    assert_close(logits_of(decoder_with(model, adapter)), peft_logits(adapter, TINY))


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self) -> tuple[Any, ...]:
            return print, ("ran",)

    model = TINY.write(tmp_path / "model")
    adapter = write_peft(tmp_path / "adapter", TINY, pickled=True)
    torch.save({"base_model.model.transformer.h.0.attn.c_attn.lora_A.weight": Bad()}, adapter / "adapter_model.bin")
    with pytest.raises(ModelError, match="refused"):
        decoder_with(model, adapter)


@pytest.mark.parametrize(
    "options", [{"modules_to_save": ["lm_head"]}, {"target_modules": ["lm_head", "c_attn"]}], ids=str
)
def test_what_is_to_stay_tied_does(tmp_path: Path, options: dict[str, Any]) -> None:
    """ensure_weight_tying: one matrix is trained for both sides, and is in the file twice. It counts once."""
    model = TINY.write(tmp_path / "model")
    adapter = write_peft(tmp_path / "adapter", TINY, ensure_weight_tying=True, **options)
    names = load_file(adapter / "adapter_model.safetensors")
    assert any("wte" in name for name in names) and any("lm_head" in name for name in names)
    decoder = decoder_with(model, adapter)
    assert decoder.config.tie_word_embeddings
    assert_close(logits_of(decoder), peft_logits(adapter, TINY))


def test_a_changed_embedding_that_is_also_the_head_is_told(tmp_path: Path) -> None:
    model = TINY.write(tmp_path / "model")
    adapter = write_peft(tmp_path / "adapter", TINY, target_modules=["wte"])
    with pytest.warns(ModelWarning, match="it changes both"):
        decoder_with(model, adapter)


@pytest.mark.parametrize("layout", ["bare", "model."])
def test_the_layout_of_the_model_makes_no_difference(tmp_path: Path, layout: str) -> None:
    model = TINY.write(tmp_path / "model", layout)
    adapter = write_peft(tmp_path / "adapter", TINY, target_modules=LAYERS, bias="all")
    assert_close(logits_of(decoder_with(model, adapter)), peft_logits(adapter, TINY))


def test_an_adapter_of_the_model_without_its_head(tmp_path: Path) -> None:
    """PEFT's names then lack "transformer."."""
    model = TINY.write(tmp_path / "model")
    adapter = write_peft(tmp_path / "adapter", TINY, target_modules=LAYERS)
    theirs = peft_logits(adapter, TINY)
    file = adapter / "adapter_model.safetensors"
    save_file({name.replace("transformer.", ""): tensor for name, tensor in load_file(file).items()}, file)
    assert_close(logits_of(decoder_with(model, adapter)), theirs)


def test_half_precision_adapters_are_merged_in_float32(tmp_path: Path) -> None:
    model = TINY.write(tmp_path / "model")
    adapter = write_peft(tmp_path / "adapter", TINY, target_modules=LAYERS)
    file = adapter / "adapter_model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file)
    assert_close(logits_of(decoder_with(model, adapter)), peft_logits(adapter, TINY))


RESIZED: dict[str, dict[str, Any]] = {
    "nothing of them": {},
    "embedding and head": {"modules_to_save": ["wte", "lm_head"]},
    "embedding": {"modules_to_save": ["wte"]},
    "head": {"modules_to_save": ["lm_head"]},
    "both, to stay tied": {"modules_to_save": ["lm_head"], "ensure_weight_tying": True},
    "embedding, low rank": {"target_modules": ["wte", "c_attn"]},
    "head, low rank": {"target_modules": ["lm_head"]},
    "new tokens": {"trainable_token_indices": [TINY.config.vocab_size, 5]},
    "new tokens by name": {"trainable_token_indices": {"wte": [TINY.config.vocab_size, 5]}},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("trained", RESIZED)
def test_tokens_that_were_added(tmp_path: Path, trained: str) -> None:
    """PEFT then saves the embedding and the head as well, and the model gets their vocabulary."""

    def enlarged() -> Any:
        torch.manual_seed(5)  # the same new rows in training and in the oracle
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
        model.resize_token_embeddings(TINY.config.vocab_size + 3, mean_resizing=False)
        return model

    model = TINY.write(tmp_path / "model")
    adapter = write_peft(tmp_path / "adapter", enlarged, **RESIZED[trained])
    decoder = decoder_with(model, adapter)
    assert decoder.config.vocab_size == TINY.config.vocab_size + 3
    assert_close(logits_of(decoder), peft_logits(adapter, enlarged))


def test_a_vocabulary_for_one_side_alone_is_refused(tmp_path: Path) -> None:
    model = TINY.write(tmp_path / "model")
    grown = tiny_gpt2(vocab_size=TINY.config.vocab_size + 3)
    for whole in ("wte", "lm_head"):
        adapter = write_peft(tmp_path / whole, grown.torch, modules_to_save=[whole])
        with pytest.raises(ModelError, match="but not both"):
            decoder_with(model, adapter)


# Refused


def refusal(tmp_path: Path, changes: dict[str, Any], base: TinyGPT2 = TINY, **options: Any) -> str:
    """The error for an adapter with other entries in its config."""
    model = TINY.write(tmp_path / "model")
    adapter = write_peft(tmp_path / "adapter", base, **options)
    (adapter / "adapter_config.json").write_text(json.dumps(config_of(adapter) | changes))
    with pytest.raises(ModelError) as error:
        decoder_with(model, adapter)
    message = str(error.value)
    assert "\n" not in message and str(adapter) in message
    return message


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"peft_type": "IA3"}, "IA3"),
        ({"peft_type": "PREFIX_TUNING"}, "virtual tokens"),
        ({"peft_type": "ADALORA"}, "merge_and_unload"),
        ({"peft_type": ["LORA"]}, "a list"),
        ({"init_lora_weights": "pissa_niter_4"}, "path_initial_model_for_weight_conversion"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
        ({"target_parameters": ["x"]}, "target_parameters"),
        ({"r": "8"}, 'r is "8"'),
        ({"r": 0}, "r is 0"),
        ({"r": 8}, "lora_A.weight has shape [4, 32], not [8, 32]"),
        ({"lora_alpha": 1e300}, "lora_alpha is 1e+300"),
        ({"use_rslora": 1}, "use_rslora is 1"),
        ({"rank_pattern": {"(a+)+": 4}}, "(a+)+"),
        ({"rank_pattern": {"(.|.)" * 30: 4}}, "far too long"),
        ({"rank_pattern": {".?" * 30: 4}}, "far too long"),
        ({"rank_pattern": {f".*{at}.*a.*": 4 for at in range(9)}}, "far too long"),
        ({"rank_pattern": {"a" * 501: 4}}, "far too long"),
        ({"rank_pattern": {f"a.{at}": 4 for at in range(2001)}}, "2,001 patterns"),
        ({"alpha_pattern": {"[": 4}}, "not a pattern"),
        ({"alpha_pattern": [1]}, "alpha_pattern is a list"),
        ({"modules_to_save": "wte"}, "modules_to_save"),
        ({"use_dora": True}, "has no lora_magnitude_vector"),
    ],
    ids=str,
)
def test_what_cannot_be_merged_is_told_by_its_name(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    assert told in refusal(tmp_path, changes)


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ({"n_layer": 3}, "has no place for base_model.model.transformer.h.2.attn.c_attn.lora_A.weight"),
        ({"n_embd": 64}, "lora_A.weight has shape [4, 64], not [4, 32]"),
    ],
)
def test_an_adapter_of_another_model_does_not_fit(tmp_path: Path, entries: dict[str, Any], told: str) -> None:
    message = refusal(tmp_path, {"base_model_name_or_path": "someone/other"}, tiny_gpt2(**entries))
    assert told in message and "trained on someone/other" in message


def test_tokens_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, {"trainable_token_indices": [1, 9999]}, trainable_token_indices=[1, 2])
    assert "not ids of this model" in message


def test_no_tensor_is_ignored(tmp_path: Path) -> None:
    model = TINY.write(tmp_path / "model")
    adapter = write_peft(tmp_path / "adapter", TINY)
    file = adapter / "adapter_model.safetensors"
    whole = load_file(file)
    first = next(name for name in whole if "lora_A" in name)
    for name, told in (
        ("base_model.model.transformer.h.0.attn.q_proj.lora_A.weight", "no place"),
        ("x.bias", "x.bias"),
    ):
        save_file({**whole, name: torch.zeros(4, 32)}, file)
        with pytest.raises(ModelError, match=told):
            decoder_with(model, adapter)
    save_file({name: tensor for name, tensor in whole.items() if name != first}, file)
    with pytest.raises(ModelError, match="without the rest of its layer"):
        decoder_with(model, adapter)
    save_file({}, file)
    with pytest.raises(ModelError, match="changes nothing"):
        decoder_with(model, adapter)
    write_peft(tmp_path / "third", TINY, pickled=True)
    torch.save({"a": 1}, tmp_path / "third" / "adapter_model.bin")
    with pytest.raises(ModelError, match="no state dict"):
        decoder_with(model, tmp_path / "third")
