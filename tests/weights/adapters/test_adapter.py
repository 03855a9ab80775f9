"""Adapters by name: local folders, the hub, and what is no adapter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mlxgen
from mlxgen.errors import ModelError
from mlxgen.weights import convert
from mlxgen.weights.adapters.adapter import open_adapter

from ...support.adapters import write_mlx_lm, write_peft
from ...support.hub import Hub
from ...support.models import tiny_gpt2

TINY = tiny_gpt2(n_ctx=64, layer_norm_epsilon=1e-5)  # entries that mlx-lm needs


def refusal(name: str | Path) -> str:
    with pytest.raises(ModelError) as error:
        open_adapter(name)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_an_adapter_of_the_hub_is_downloaded_once(hub: Hub, tmp_path: Path) -> None:
    folder = write_peft(tmp_path / "made", TINY)
    hub.repos["someone/lora"] = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    hub.repos["someone/lora"]["optimizer.pt"] = b"x"
    adapter = open_adapter("someone/lora")
    assert adapter.kind == "LoRA of PEFT" and len(adapter.tensors) == 4
    assert hub.downloaded == {"adapter_config.json", "adapter_model.safetensors"}
    hub.refusals["someone/lora"] = (503, "")
    assert open_adapter("someone/lora").digest() == adapter.digest()  # from the cache
    assert "no such model" in refusal("someone/nothing")
    assert "has no adapter_config.json" in refusal("someone/tales")


def test_what_is_no_adapter(tmp_path: Path) -> None:
    model = TINY.write(tmp_path / "model")
    assert "is a whole model" in refusal(model)
    assert "give the folder" in refusal(model / "config.json")
    assert "no such folder" in refusal(tmp_path / "missing")
    assert "no such folder" in refusal("adapters")
    assert "no such folder" in refusal("")
    write_peft(tmp_path / "run" / "checkpoint-10", TINY)
    assert f"give one of the adapters in it, such as {tmp_path}/run/checkpoint-10" in refusal(tmp_path / "run")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    assert "has no adapter_model.safetensors or adapter_model.bin" in refusal(tmp_path / "bare")
    (tmp_path / "bare" / "adapter_config.json").write_text('{"rank": 3}')
    assert "neither PEFT's" in refusal(tmp_path / "bare")


@pytest.mark.parametrize("use", [mlxgen.load, convert])
def test_an_adapter_alone_names_its_base_and_the_command(tmp_path: Path, use: type) -> None:
    adapter = write_peft(tmp_path / "my adapter", TINY)
    (tmp_path / "base").mkdir()
    path = adapter / "adapter_config.json"
    for base, told in (
        ("openai-community/gpt2", f"mlxgen generate -m openai-community/gpt2 --adapter '{adapter}'"),
        ("gpt2", "mlxgen convert gpt2 --adapter"),
        ("fairy-tales", "mlxgen generate -m fairy-tales --adapter"),
        ("/content/tales", "an adapter of /content/tales, not a whole model; use it with `mlxgen generate -m MODEL"),
        ("tales", "MODEL is a folder or hub id of that model, which is not here under this name"),
        ("base", f"mlxgen generate -m {tmp_path}/base --adapter"),  # beside the adapter's folder
        (None, "mlxgen generate -m MODEL --adapter"),
    ):
        path.write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": base}))
        for place in (adapter, adapter / "adapter_model.safetensors"):
            if use is mlxgen.load and place != adapter:
                continue
            with pytest.raises(ModelError) as error:
                use(str(place))
            assert told in str(error.value) and "\n" not in str(error.value)


def test_the_kind_and_base_are_said_in_words(tmp_path: Path) -> None:
    model = TINY.write(tmp_path / "model", "model.")
    for kind, words in (("lora", "LoRA of mlx-lm"), ("dora", "DoRA of mlx-lm"), ("full", "full fine-tune of mlx-lm")):
        adapter = open_adapter(write_mlx_lm(tmp_path / kind, model, kind))
        assert adapter.kind == words and adapter.base == str(model)
    assert open_adapter(write_peft(tmp_path / "d", TINY, use_dora=True)).kind == "DoRA of PEFT"
