"""config.json: what published files say is read as transformers reads it, and nothing in one is believed."""

import json
from pathlib import Path

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import ModelError
from mlxgen.network.config import ACTIVATIONS, GPT2Config, Quantization, read_config

TODAY = {"model_type": "gpt2"}

SAME = (  # entries that keep their name and value
    "vocab_size",
    "n_positions",
    "n_embd",
    "n_layer",
    "n_head",
    "activation_function",
    "layer_norm_epsilon",
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
    "reorder_and_upcast_attn",
    "tie_word_embeddings",
)

# The file that came with GPT-2 in 2019, before `n_inner`, `scale_attn_weights` and the rest were written down.
FROM_2019 = {
    "attn_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "finetuning_task": None,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "n_ctx": 512,
    "n_embd": 1024,
    "n_head": 16,
    "n_layer": 24,
    "num_labels": 1,
    "output_attentions": False,
    "resid_pdrop": 0.1,
    "torchscript": False,
    "vocab_size_or_config_json_file": 50257,
}


def write(folder: Path, text: str | bytes) -> Path:
    (folder / "config.json").write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def refusal(**entries: object) -> str:
    with pytest.raises(ModelError) as caught:
        GPT2Config.from_dict(TODAY | entries)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_embd": 48, "n_head": 3, "n_layer": 5, "n_positions": 77, "vocab_size": 99, "n_inner": 100},
        {"activation_function": "relu", "layer_norm_epsilon": 1e-6, "scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
        {"tie_word_embeddings": False, "eos_token_id": [5, 7], "bos_token_id": None},
    ],
)
def test_reads_what_transformers_writes(tmp_path: Path, options: dict[str, object]) -> None:
    theirs = transformers.GPT2Config(**options)
    theirs.save_pretrained(tmp_path)
    ours = read_config(tmp_path)
    for name in SAME:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.n_inner == (theirs.n_inner or 4 * theirs.n_embd)
    ends = theirs.eos_token_id if isinstance(theirs.eos_token_id, list) else [theirs.eos_token_id]
    assert ours.eos_token_ids == tuple(end for end in ends if end < ours.vocab_size)


def test_missing_entries_have_the_defaults_of_transformers() -> None:
    theirs = transformers.GPT2Config()
    entries = theirs.to_dict() | {"bos_token_id": None, "eos_token_id": None}  # only a tokenizer knows these
    assert GPT2Config.from_dict(TODAY) == GPT2Config.from_dict(entries) == GPT2Config()


def test_reads_the_file_of_2019() -> None:
    config = GPT2Config.from_dict(FROM_2019)
    assert (config.n_positions, config.n_embd, config.n_inner) == (512, 1024, 4096)
    assert (config.vocab_size, config.activation_function, config.tie_word_embeddings) == (50257, "gelu_new", True)


def test_n_positions_counts_where_n_ctx_is_there_too() -> None:
    assert GPT2Config.from_dict(TODAY | {"n_positions": 64, "n_ctx": 1024}).n_positions == 64


@pytest.mark.parametrize("tied", [True, False])
def test_counts_parameters_as_torch_does(tied: bool) -> None:
    options = {"n_embd": 24, "n_head": 2, "n_layer": 3, "n_positions": 17, "vocab_size": 31, "n_inner": 40}
    theirs = transformers.GPT2Config(**options, tie_word_embeddings=tied)
    count = sum(weight.numel() for weight in transformers.GPT2LMHeadModel(theirs).parameters())
    assert GPT2Config.from_dict(theirs.to_dict()).n_parameters == count


def test_cache_bytes_of_a_96_layer_12288_wide_model() -> None:
    config = GPT2Config.from_dict(TODAY | {"n_layer": 96, "n_embd": 12288, "n_head": 96})
    assert config.cache_bytes_per_token(2) == 4_718_592
    assert config.head_dim == 128


def test_another_model_type_is_named_with_what_is_supported() -> None:
    assert '"llama"' in refusal(model_type="llama") and '"gpt2"' in refusal(model_type="llama")
    with pytest.raises(ModelError, match="no model_type"):
        GPT2Config.from_dict({"vocab_size": 10})


def test_cross_attention_is_refused() -> None:
    assert "cross-attention" in refusal(add_cross_attention=True)


@pytest.mark.parametrize("name", ["vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner"])
@pytest.mark.parametrize("value", [0, -1, 10**9, 10**400, 2.0, "12", True, [12], float("nan")])
def test_sizes_that_are_absurd_are_refused_by_name(name: str, value: object) -> None:
    assert name in refusal(**{name: value})


def test_a_million_layers_and_a_width_that_heads_cannot_share() -> None:
    assert "n_layer is 1000000" in refusal(n_layer=1_000_000)
    assert "not divisible" in refusal(n_embd=100, n_head=12)


def test_an_unknown_activation_lists_the_known_ones() -> None:
    message = refusal(activation_function="mish")
    assert "mish" in message and all(name in message for name in ACTIVATIONS)
    assert all(GPT2Config.from_dict(TODAY | {"activation_function": name}) for name in ACTIVATIONS)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0, -1e-5, 2, "1e-5", True, []])
def test_a_bad_epsilon_is_refused(value: object) -> None:
    assert "layer_norm_epsilon" in refusal(layer_norm_epsilon=value)


def test_end_tokens_that_the_vocabulary_lacks_do_not_count() -> None:
    config = GPT2Config.from_dict(TODAY | {"vocab_size": 100, "eos_token_id": [7, 50256, 7, -1]})
    assert config.eos_token_ids == (7,) and config.bos_token_id is None
    assert GPT2Config.from_dict(TODAY | {"eos_token_id": None}).eos_token_ids == ()
    assert "eos_token_id" in refusal(eos_token_id="</s>")
    assert "eos_token_id" in refusal(eos_token_id=[[1]])


def test_the_quantization_of_mlx_lm() -> None:
    block = {
        "group_size": 64,
        "bits": 4,
        "mode": "affine",
        "model.wte": {"group_size": 32, "bits": 8},
        "model.wpe": False,
        "model.h.0.attn.c_attn": True,
    }
    quantization = GPT2Config.from_dict(TODAY | {"quantization": block, "quantization_config": block}).quantization
    assert quantization is not None
    assert quantization.for_layer("model.wte") == Quantization(32, 8)
    assert quantization.for_layer("model.wpe") is None
    assert quantization.for_layer("model.h.0.attn.c_attn") == quantization
    assert "bits" in refusal(quantization={"bits": 7})
    assert "group_size" in refusal(quantization={"group_size": 0})
    assert "mode" in refusal(quantization={"mode": ["affine"]})
    assert "gptq" in refusal(quantization_config={"quant_method": "gptq", "bits": 4})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", "JSON object"),
        ("null", "JSON object"),
        ("{", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"n_layer": ' + "9" * 5000 + "}", "not valid JSON"),
        ('{"model_type": "gpt2", "layer_norm_epsilon": NaN}', "layer_norm_epsilon is NaN"),
        ('{"model_type": "gpt2", "layer_norm_epsilon": 1e999}', "layer_norm_epsilon"),
        (" " * (9 << 20), "MB"),
    ],
)
def test_a_file_that_is_no_config_is_told_in_one_line_with_its_path(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ModelError, match=told) as caught:
        read_config(write(tmp_path, text))
    assert str(tmp_path / "config.json") in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        read_config(tmp_path)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = [*GPT2Config.__dataclass_fields__, "model_type", "eos_token_id", "n_ctx", "quantization_config"]


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=6))
def test_any_json_gives_a_config_or_a_refusal(entries: dict[str, object]) -> None:
    entries = json.loads(json.dumps(TODAY | entries))
    try:
        config = GPT2Config.from_dict(entries)
    except ModelError as error:
        assert "\n" not in str(error) and len(str(error)) < 400
    else:
        assert config.n_embd % config.n_head == 0
