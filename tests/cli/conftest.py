"""Tiny GPT-2s for the tests of the terminal."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import mlxgen
from mlxgen.cli.main import main

from ..support.models import tiny_gpt2

WORDS = "Once upon a time there was a king who lived in a house by the sea. Far far away, and so on!\n"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny random GPT-2 as transformers saves it."""
    import tokenizers
    import torch
    import transformers

    path = tmp_path_factory.mktemp("tiny")
    library = tokenizers.ByteLevelBPETokenizer()
    library.train_from_iterator([WORDS] * 4, vocab_size=300, special_tokens=["<|endoftext|>"])
    size = library.get_vocab_size()
    end = library.token_to_id("<|endoftext|>")
    library.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"})
    )
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=size,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        initializer_range=0.2,
        bos_token_id=end,
        eos_token_id=end,
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session")
def model(folder: str) -> mlxgen.Model:
    return mlxgen.load(folder)


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A still smaller one, whose table of 32 positions is soon full."""
    tiny = tiny_gpt2(n_positions=32, n_embd=16, n_layer=1, n_head=2)
    return tiny.write(tmp_path_factory.mktemp("small") / "tiny")


@pytest.fixture
def run_here(small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """run_here("batch", "in.jsonl", ...) in an empty folder, on the small model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLXGEN_MODEL", str(small_folder))

    def call(*arguments: str, stdin: str | bytes = "") -> Result:
        return CliRunner().invoke(main, list(arguments), input=stdin)

    return call
