"""Sentencepiece models: the ids and the text of the sentencepiece library itself on the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from mlxgen.text.sentencepiece_library import CLASSES
from mlxgen.text.tokenizer import Tokenizer, load_tokenizer

from ..support.streaming import any_ids, check_streams, streamed

LINES = ["Far far away behind the word mountains, 日本語 lives.", "we are not there yet!", "Oh, the word. ABC abc"] * 9
TEXTS = ["Far far away", "word 😀 本 Ω", "ＡＢＣ ｆａｒ\n away", "  two  spaces ", "", " the", "日本語 yet!"]
SHAPES: dict[str, dict[str, Any]] = {
    "unigram": {"model_type": "unigram", "vocab_size": 43},
    "bpe with bytes": {"model_type": "bpe", "vocab_size": 330, "byte_fallback": True},
}


def trained(folder: Path, kind: str, shape: str, **settings: object) -> tuple[Tokenizer, Any]:
    """Our tokenizer and sentencepiece's, numbered as rinna's: unknown 0, start 1, end 2."""
    numbers = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "user_defined_symbols": "[PAD],[CLS]"}
    with (folder / "spiece.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES), model_writer=file, minloglevel=2, **numbers, **SHAPES[shape]
        )
    entries = {"tokenizer_class": kind, "extra_ids": 0, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(entries))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    return load_tokenizer(folder), theirs


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", CLASSES)
def test_ids_are_those_of_the_sentencepiece_model(tmp_path: Path, kind: str, shape: str) -> None:
    ours, theirs = trained(tmp_path, kind, shape)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        if 0 not in ids:
            assert ours.decode(ids) == theirs.decode(ids)
    ids = ours.encode("we are  there ＡＢＣ")
    assert sum(map(ours.token_bytes, ids)) == len(" we are there ABC")


def test_a_character_without_a_token_is_the_unknown_token_and_never_the_end_token(tmp_path: Path) -> None:
    ours, theirs = trained(tmp_path, "T5Tokenizer", "unigram", eos_token="</s>", unk_token="<unk>")
    assert (ours.eos_token_id, theirs.eos_id(), theirs.unk_id()) == (2, 2, 0)
    ids = ours.encode("far 😀 away")
    assert ids == theirs.encode("far 😀 away")
    assert 0 in ids and 2 not in ids


def test_do_lower_case_lowers_the_text_but_not_its_special_tokens(tmp_path: Path) -> None:
    ours, theirs = trained(tmp_path, "T5Tokenizer", "unigram", do_lower_case=True, pad_token="[PAD]", bos_token="<s>")
    assert ours.encode("FAR Away") == theirs.encode("far away") != theirs.encode("FAR Away")
    assert ours.encode("<s>FAR[PAD]Away</s>") == [1, *theirs.encode("far"), 3, *theirs.encode("away"), 2]
    assert ours.decode([1, *theirs.encode("far"), 2]) == "<s> far</s>"


def test_added_tokens_follow_the_vocabulary(tmp_path: Path) -> None:
    ours, theirs = trained(tmp_path, "T5Tokenizer", "unigram", additional_special_tokens=["<one>", "<two>"])
    size = theirs.get_piece_size()
    assert ours.encode("far<two>away<one>") == [*theirs.encode("far"), size + 1, *theirs.encode("away"), size]
    assert ours.vocab_size == size + 2


def test_text_streams_as_it_decodes(tmp_path: Path) -> None:
    for shape in SHAPES:
        ours, theirs = trained(tmp_path, "LlamaTokenizer", shape)
        assert streamed(ours, ours.encode("Far"), theirs.encode("word away")) == " word away"
        check_streams(ours, any_ids(ours, [0, 2, *ours.encode("word 日本 😀")]), examples=60)


def test_gpt_sw3_is_that_of_transformers(tmp_path: Path) -> None:
    import transformers

    ours, _ = trained(tmp_path, "GPTSw3Tokenizer", "bpe with bytes")
    theirs = transformers.GPTSw3Tokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ids) == theirs.decode(ids)
    assert ours.eos_token_id == theirs.eos_token_id
    # A special token moves the text before it by a space: there, nothing would be certain before the end.
    without = theirs.all_special_ids
    favourites = [token for token in ours.encode("word 日本 away") if token not in without]
    check_streams(ours, any_ids(ours, favourites, without), examples=25)
