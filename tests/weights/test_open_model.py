"""A folder becomes a whole model: its decoder, its tokenizer and the tokens that end an answer."""

import json
import shlex
import shutil
import warnings
from pathlib import Path

import mlx.core as mx
import pytest
import tokenizers
import torch

import mlxgen
from mlxgen import blas
from mlxgen.errors import MlxgenError, ModelError, ModelWarning, OptionError
from mlxgen.text.tokenizer import load_tokenizer
from mlxgen.weights import convert
from mlxgen.weights.load import end_tokens

from ..support.adapters import write_peft
from ..support.devices import cpu_only
from ..support.models import tiny_gpt2
from ..support.vocabularies import gpt2_folder
from .transformers_gpt2 import theirs


def save_tokenizer(folder: Path, end: int = 96) -> None:
    vocabulary = {f"t{i}": i for i in range(97)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="t0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": f"t{end}", "unk_token": "t0"}))


def test_load_gives_a_whole_model(tmp_path: Path) -> None:
    model = theirs()
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path, end=95)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    loaded = mlxgen.load(str(tmp_path))
    assert loaded.name == str(tmp_path) and loaded.config == loaded.decoder.config
    assert loaded.end_tokens == {3, 4, 95, 96}
    prompt = loaded.tokenizer.encode("t1 t2 t3")
    assert prompt == [1, 2, 3]
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=200)
    tokens = list(prompt)
    for _ in range(8):
        tokens.append(int(mx.argmax(loaded.decoder(mx.array([tokens]))[0, -1]).item()))
    assert tokens == expected[0].tolist()


@cpu_only("elsewhere weights lie as they are stored")
def test_loaded_weights_lie_as_the_cpu_reads_them_fastest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "is_quick_for_a_row", lambda: False)  # with our sgemm, either layout is read as fast
    model = mlxgen.load(str(tiny_gpt2().write(tmp_path / "m")))
    for weight in (model.decoder.model.wte.weight, model.decoder.model.h[0].attn.c_attn.weight):
        assert memoryview(weight.T).c_contiguous  # type: ignore[arg-type]  # [in, out]


def test_end_tokens_come_from_three_places(tmp_path: Path) -> None:
    config = mlxgen.GPT2Config.from_dict({"model_type": "gpt2", "vocab_size": 50, "eos_token_id": 5})
    assert end_tokens(tmp_path, config, None) == {5}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [6, 5, 50256]}')
    assert end_tokens(tmp_path, config, 7) == {5, 6, 7}
    assert end_tokens(tmp_path, config, 50) == {5, 6}
    for wrong in ('{"eos_token_id": "x"}', "[]", "{"):
        (tmp_path / "generation_config.json").write_text(wrong)
        with pytest.raises(ModelError, match=r"generation_config\.json"):
            end_tokens(tmp_path, config, None)


@pytest.mark.parametrize("named", [{}, {"tokenizer_class": "PreTrainedTokenizerFast"}])
def test_a_config_of_2019_names_no_end_token_and_gpt2s_vocabulary_has_one(
    tmp_path: Path, named: dict[str, str]
) -> None:
    """The tokenizer says what 50256 is, never the vocabulary's size."""
    config = mlxgen.GPT2Config.from_dict({"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257})
    gpt2_folder(tmp_path, tokenizer_config=named)
    tokenizer = load_tokenizer(tmp_path, n_embeddings=50257)
    assert end_tokens(tmp_path, config, tokenizer.eos_token_id) == {50256}
    words = {f"w{at}": at for at in range(50257)}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path, n_embeddings=50257)
    assert not end_tokens(tmp_path, config, tokenizer.eos_token_id)


def test_an_adapter_beside_a_whole_model_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    tiny = tiny_gpt2()
    folder = write_peft(tiny.write(tmp_path / "my tales"), tiny)
    hint = rf"not applied; `--adapter {shlex.quote(str(folder))}` applies it"
    with pytest.warns(ModelWarning, match=hint):
        mlxgen.load(str(folder))
    assert hint in convert(folder, tmp_path / "out").warnings[0]
    with warnings.catch_warnings(action="error"):
        mlxgen.load(str(folder), adapter=folder)
    assert not any("adapter" in warning for warning in convert(folder, tmp_path / "out2", adapter=folder).warnings)


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_gpt2().write(tmp_path / "tales")
    is_file = Path.is_file

    def refused(self: Path, **options: bool) -> bool:  # as up to Python 3.13
        if self.parent == folder:
            raise PermissionError(13, "Permission denied", str(self))
        return is_file(self, **options)

    monkeypatch.setattr(Path, "is_file", refused)
    with pytest.raises(ModelError) as error:
        mlxgen.load(str(folder))
    assert str(error.value) == f"{folder}: cannot be read (Permission denied)"


def test_a_revision_of_a_folder_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="revision"):
        mlxgen.load(str(tmp_path), revision="main")


def test_a_folder_without_weights_points_to_convert_when_pytorch_has_them(tmp_path: Path) -> None:
    theirs().save_pretrained(tmp_path)
    shutil.move(tmp_path / "model.safetensors", tmp_path / "pytorch_model.bin")
    with pytest.raises(MlxgenError, match="mlxgen convert"):
        mlxgen.load(str(tmp_path))
