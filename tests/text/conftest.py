"""The tokenizers that the tests of text share."""

from pathlib import Path

import pytest

from mlxgen.text.tokenizer import Tokenizer, load_tokenizer

from ..support.vocabularies import bert_folder, gpt2_folder


@pytest.fixture(scope="session")
def gpt2_plain(tmp_path_factory) -> Path:
    return gpt2_folder(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="session")
def gpt2(gpt2_plain) -> Tokenizer:
    return load_tokenizer(gpt2_plain)


@pytest.fixture(scope="session")
def bert(tmp_path_factory) -> Tokenizer:
    config = {"tokenizer_class": "BertTokenizer", "clean_up_tokenization_spaces": True}
    return load_tokenizer(bert_folder(tmp_path_factory.mktemp("bert"), config))
