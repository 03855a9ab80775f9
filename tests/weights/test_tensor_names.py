"""Tensors with other programs' prefixes, further heads, or in float64: such a checkpoint opens as the plain one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import save_file

import mlxgen
from mlxgen.errors import ModelError, ModelWarning
from mlxgen.weights import convert
from mlxgen.weights.load import open_decoder
from mlxgen.weights.tensor_names import names_without_prefixes, shared_prefix

from ..cli.running import run
from ..support.models import TinyGPT2, published, tiny_gpt2
from .transformers_gpt2 import SIZES

IDS = mx.array([[1, 2, 3, 5, 8]])


@pytest.fixture(scope="module")
def tiny() -> TinyGPT2:
    return tiny_gpt2(n_embd=16, n_layer=2, n_head=2)


def expected(tiny: TinyGPT2) -> Any:
    with torch.no_grad():
        return tiny.torch()(torch.tensor(np.array(IDS))).logits[0].numpy()


def write(tiny: TinyGPT2, folder: Path, weights: dict[str, Any]) -> Path:
    tiny.write(folder)
    save_file({name: np.ascontiguousarray(array) for name, array in weights.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("layout", "prefix"),
    [
        *(("transformer.", p) for p in ("_module.", "_forward_module.", "pretrained_model.", "base_model.model.")),
        *(("bare", p) for p in ("gpt.", "gpt2.", "model.", "base_model.model.", "a.b.c.")),
        *(("model.", p) for p in ("_orig_mod.module.", "policy.")),
    ],
)
def test_prefixes_of_other_programs(tiny: TinyGPT2, tmp_path: Path, layout: str, prefix: str) -> None:
    weights = {prefix + name: array for name, array in published(tiny.weights, layout).items()}
    folder = write(tiny, tmp_path / "there", weights)
    theirs = expected(tiny)
    np.testing.assert_allclose(np.array(open_decoder(folder)(IDS)[0]), theirs, atol=1e-4)
    done = convert(folder, tmp_path / "out")
    np.testing.assert_allclose(np.array(open_decoder(done.folder)(IDS)[0]), theirs, atol=1e-4)


def test_wrappers_in_the_middle_of_a_name_and_a_file_alone(tiny: TinyGPT2, tmp_path: Path) -> None:
    weights = published(tiny.weights, "transformer.")
    torch.save(
        {
            "state_dict": {
                "model._forward_module." + name.replace("h.0.", "h.0._checkpoint_wrapped_module."): torch.tensor(array)
                for name, array in weights.items()
            }
        },
        tmp_path / "last.ckpt",
    )
    tiny.tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "n.json").write_text(json.dumps({"n_head": 2}))
    done = convert(tmp_path / "last.ckpt", tmp_path / "out", config=tmp_path / "n.json")
    np.testing.assert_allclose(np.array(open_decoder(done.folder)(IDS)[0]), expected(tiny), atol=1e-4)


def test_a_double_heads_model_of_transformers_opens_without_its_second_head(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.GPT2DoubleHeadsModel(transformers.GPT2Config(**SIZES, num_labels=1)).eval()
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        theirs = model(torch.tensor(np.array(IDS))).logits[0].numpy()
    with pytest.warns(ModelWarning, match=r"multiple_choice_head\.summary\.bias.*left out"):
        ours = open_decoder(tmp_path)(IDS)[0]
    np.testing.assert_allclose(np.array(ours), theirs, atol=1e-4)


@pytest.mark.parametrize("prefix", ["", "pretrained_model."])
def test_a_value_head_is_left_out_with_one_line(
    tiny: TinyGPT2, tmp_path: Path, prefix: str, recwarn: pytest.WarningsRecorder
) -> None:
    weights = {prefix + name: array for name, array in published(tiny.weights, "transformer.").items()}
    folder = write(tiny, tmp_path / "there", weights | {"v_head.summary.weight": np.ones((1, 16), np.float32)})
    said = run("generate", "-m", str(folder), "Once", "-n", "2")
    assert said.exit_code == 0 and said.stderr == (
        f"Warning: {folder}: v_head.summary.weight: left out, because it is not part of a language model\n"
    )
    assert run("generate", "-m", str(folder), "Once", "-n", "2", "-q").stderr == ""
    done = convert(folder, tmp_path / "out")
    assert any("v_head.summary.weight" in warning for warning in done.warnings)
    recwarn.clear()
    mlxgen.load(str(done.folder))
    assert not [one for one in recwarn if one.category is ModelWarning]


def test_float64_becomes_float32_with_one_line(tiny: TinyGPT2, tmp_path: Path) -> None:
    weights = published(tiny.weights, "transformer.")
    mixed = {name: array.astype(np.float64) if "mlp" in name else array for name, array in weights.items()}
    folder = write(tiny, tmp_path / "there", mixed)
    with pytest.warns(ModelWarning, match="float64"):
        ours = open_decoder(folder)(IDS)[0]
    np.testing.assert_allclose(np.array(ours), expected(tiny), atol=1e-4)
    done = convert(folder, tmp_path / "out")
    assert done.dtype == "float32" and any("float64" in warning for warning in done.warnings)
    np.testing.assert_allclose(np.array(open_decoder(done.folder)(IDS)[0]), expected(tiny), atol=1e-4)


def test_several_models_in_one_file_are_told_apart_by_their_prefixes(tiny: TinyGPT2, tmp_path: Path) -> None:
    weights = published(tiny.weights, "transformer.")
    both = {f"{who}.{name}": array for who in ("policy", "reference") for name, array in weights.items()}
    with pytest.raises(ModelError, match=r"2 models.*'policy\.transformer\.' and 'reference\.transformer\.'"):
        open_decoder(write(tiny, tmp_path / "there", both))


def test_weights_of_something_else_are_told_by_their_prefix_alone(tiny: TinyGPT2, tmp_path: Path) -> None:
    other = {f"bert.encoder.layer.{i}.w": np.ones(2, np.float32) for i in range(9)}
    with pytest.raises(ModelError) as error:
        open_decoder(write(tiny, tmp_path / "there", other))
    message = str(error.value)
    assert "not those of a GPT-2" in message and "'bert.encoder.layer.'" in message and ".w" not in message
    assert shared_prefix(["a.b.c", "a.b.d.e"]) == "a.b." and shared_prefix(["a", "b"]) == ""


def test_a_message_names_config_json_only_where_there_is_one(tmp_path: Path) -> None:
    from ..support import torch_gpts

    state = torch_gpts.GPT(65, 16, 2, 2, 16).state_dict()
    del state["transformer.h.1.ln_2.weight"]
    args = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 16, "bias": True, "vocab_size": 65}
    torch.save({"model": state, "model_args": args}, tmp_path / "ckpt.pt")
    with pytest.raises(ModelError, match=r"do not match model_args: missing .*h\.1\.ln_2\.weight"):
        convert(tmp_path / "ckpt.pt", tmp_path / "out")


def test_names_of_published_layouts_stay(tiny: TinyGPT2) -> None:
    for layout in ("bare", "transformer.", "model."):
        stored = published(tiny.weights, layout)
        assert names_without_prefixes(stored) == {name: name for name in stored}
