"""Each published layout is matched to the decoder, and every tensor that does not fit is named before any is read."""

from dataclasses import replace
from pathlib import Path

import pytest
from mlx.utils import tree_flatten

from mlxgen.errors import ModelError
from mlxgen.network.config import GPT2Config
from mlxgen.network.decoder import GPT2
from mlxgen.weights.files.headers import StoredTensor
from mlxgen.weights.layouts import HEAD, decoder_shapes, match

CONFIG = GPT2Config.from_dict(
    {"n_embd": 8, "n_head": 2, "n_layer": 2, "n_positions": 6, "vocab_size": 11, "n_inner": 20}
)


UNTIED = GPT2Config.from_dict(
    {"n_embd": 8, "n_head": 2, "n_layer": 2, "n_positions": 6, "vocab_size": 11, "tie_word_embeddings": False}
)


PACKED = GPT2Config.from_dict(
    {"n_embd": 64, "n_head": 2, "n_layer": 1, "vocab_size": 11, "quantization": {"group_size": 32, "bits": 4}}
)


CONV1D = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


Tensors = dict[str, StoredTensor]


def tensor(*shape: int, dtype: str = "F32") -> StoredTensor:
    return StoredTensor(dtype, shape, Path("model.safetensors"))


def checkpoint(config: GPT2Config, prefix: str) -> Tensors:
    """The tensors of a checkpoint with this prefix, as its publisher writes them."""
    stored = {}
    for name, shape in decoder_shapes(config).items():
        turned = prefix != "model." and name.endswith(CONV1D)
        published = name if name == HEAD else prefix + name.removeprefix("model.")
        stored[published] = tensor(*(shape[::-1] if turned else shape))
    return stored


def refusal(stored: Tensors, config: GPT2Config = CONFIG) -> str:
    with pytest.raises(ModelError) as caught:
        match(stored, config)
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.mark.parametrize("config", [CONFIG, UNTIED])
def test_the_shapes_are_those_of_the_decoder(config: GPT2Config) -> None:
    parameters = {name: array.shape for name, array in tree_flatten(GPT2(config).parameters())}
    assert decoder_shapes(config) == parameters


@pytest.mark.parametrize("config", [CONFIG, UNTIED])
@pytest.mark.parametrize("prefix", ["", "transformer.", "model."])
def test_every_layout_gives_every_parameter(prefix: str, config: GPT2Config) -> None:
    layout = match(checkpoint(config, prefix), config)
    assert layout.sources.keys() == decoder_shapes(config).keys()
    turned = {target for target, source in layout.sources.items() if source.transpose}
    products = {target for target in layout.sources if target.endswith(CONV1D)}
    assert turned == (set() if prefix == "model." else products)


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_mask_buffers_are_ignored(prefix: str) -> None:
    stored = checkpoint(CONFIG, prefix)
    for layer in range(2):
        stored[f"{prefix}h.{layer}.attn.bias"] = tensor(1, 1, 6, 6, dtype="U8")
        stored[f"{prefix}h.{layer}.attn.masked_bias"] = tensor()
    assert match(stored, CONFIG).sources.keys() == decoder_shapes(CONFIG).keys()


def test_missing_unexpected_and_wrongly_shaped_tensors_are_all_named() -> None:
    stored = checkpoint(CONFIG, "transformer.")
    del stored["transformer.h.1.ln_2.bias"]
    stored["transformer.h.2.ln_1.bias"] = tensor(8)
    stored["extra.weight"] = tensor(2, 8)
    stored["transformer.h.0.mlp.c_fc.weight"] = tensor(20, 8)
    message = refusal(stored)
    assert "missing transformer.h.1.ln_2.bias" in message
    assert "unexpected extra.weight, transformer.h.2.ln_1.bias" in message
    assert "transformer.h.0.mlp.c_fc.weight has shape [20, 8], not [8, 20]" in message


def test_every_missing_tensor_is_named() -> None:
    stored = {name: tensor for name, tensor in checkpoint(CONFIG, "").items() if ".mlp." not in name}
    parts = ("c_fc.weight", "c_fc.bias", "c_proj.weight", "c_proj.bias")
    names = ", ".join(f"h.{layer}.mlp.{part}" for layer in (0, 1) for part in parts)
    assert refusal(stored).endswith(f"missing {names}")


def test_a_config_of_other_sizes_is_told_by_the_embedding() -> None:
    stored = checkpoint(CONFIG, "") | {"wte.weight": tensor(12, 8)}
    assert "wte.weight has shape [12, 8], not [11, 8]" in refusal(stored)


def test_a_config_of_another_width_is_told_by_a_few_shapes() -> None:
    message = refusal(checkpoint(CONFIG, ""), replace(CONFIG, n_embd=16, n_inner=64))
    assert "wte.weight has shape [11, 8], not [11, 16]" in message
    assert message.count("has shape") == 3 and message.endswith("25 more")


def test_the_names_of_strangers_cannot_forge_a_message() -> None:
    message = refusal(checkpoint(CONFIG, "") | {"x\n\x1b[31mError: fine": tensor(1)})
    assert "unexpected x\\n\\x1b[31mError: fine" in message


def test_an_untied_head_must_be_there() -> None:
    stored = checkpoint(UNTIED, "transformer.")
    del stored[HEAD]
    assert "missing lm_head.weight" in refusal(stored, UNTIED)


def test_a_tied_head_may_be_stored_on_either_side_or_both() -> None:
    both = checkpoint(CONFIG, "transformer.") | {HEAD: tensor(11, 8)}
    assert HEAD in match(both, CONFIG).sources
    only_head = {name: tensor for name, tensor in both.items() if name != "transformer.wte.weight"}
    layout = match(only_head, CONFIG)
    assert HEAD not in layout.sources and layout.sources["model.wte.weight"].name == HEAD


@pytest.mark.parametrize("dtype", ["F64", "I8", "U32", "BOOL"])
def test_weights_must_be_float32_float16_or_bfloat16(dtype: str) -> None:
    stored = checkpoint(CONFIG, "") | {"ln_f.bias": tensor(8, dtype=dtype)}
    assert f"ln_f.bias has type {dtype}" in refusal(stored)


def pack(stored: Tensors, path: str) -> Tensors:
    rows, columns = stored[f"{path}.weight"].shape
    return stored | {
        f"{path}.weight": tensor(rows, columns // 8, dtype="U32"),
        f"{path}.scales": tensor(rows, columns // 32, dtype="F16"),
        f"{path}.biases": tensor(rows, columns // 32, dtype="F16"),
    }


def test_packed_layers_are_those_with_scales() -> None:
    stored = checkpoint(PACKED, "model.")
    for path in ("model.wte", "model.h.0.mlp.c_fc"):
        stored = pack(stored, path)
    assert match(stored, PACKED).packed.keys() == {"model.wte", "model.h.0.mlp.c_fc"}


def test_packed_layers_that_do_not_fit_are_named() -> None:
    stored = pack(checkpoint(PACKED, "model."), "model.wte")
    assert "missing model.wte.biases" in refusal(
        {name: tensor for name, tensor in stored.items() if name != "model.wte.biases"}, PACKED
    )
    assert "[11, 2]" in refusal(stored | {"model.wte.scales": tensor(11, 4, dtype="F16")}, PACKED)
    assert "quantization" in refusal(
        stored, GPT2Config.from_dict({"n_embd": 64, "n_head": 2, "n_layer": 1, "vocab_size": 11})
    )
