"""Streamed text against decoding the whole list at once."""

import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from mlxgen.text.detokenizer import ByteText, WindowText, byte_alphabet
from mlxgen.text.stop_text import StopText
from mlxgen.text.tokenizer import load_tokenizer

from ..support.streaming import any_ids, check_streams, streamed
from ..support.vocabularies import TEXTS, WORDS, gpt2_folder


def test_gpt2_streams_what_it_decodes(gpt2):
    check_streams(gpt2, any_ids(gpt2, [*range(256), *gpt2.encode("😀 我\u0301 é"), 50256]), examples=200)


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_streams_whole_characters(gpt2, text):
    stream = gpt2.stream()
    pieces = [stream.add(token) for token in gpt2.encode(text)]
    assert "".join(pieces) == text and stream.flush() == ""
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_half_in_the_prompt_comes_out_whole(gpt2):
    ids = gpt2.encode("x😀")
    assert len(ids) > 2
    assert streamed(gpt2, ids[:2], ids[2:]) == "😀"
    assert streamed(gpt2, ids[:2], gpt2.encode(" y")) == " y"  # the prompt's broken byte is not shown again


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(
        st.binary(max_size=6)
        | st.characters(exclude_categories=["Cs"]).flatmap(lambda c: st.integers(1, 4).map(lambda n: c.encode()[:n]))
        | st.sampled_from([b"\xf0\x9f", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xff"]),
        max_size=10,
    )
)
def test_broken_utf8_is_replaced_as_the_tokenizers_library_replaces_it(pieces):
    stand_in = {byte: character for character, byte in byte_alphabet().items()}
    tokens = ["".join(stand_in[byte] for byte in piece) for piece in pieces]
    source = ByteText(lambda at: tokens[at])
    assert "".join(source.add(at) for at in range(len(tokens))) + source.rest() == decoders.ByteLevel().decode(tokens)


def test_byte_alphabet_is_the_librarys():
    alphabet = byte_alphabet()
    assert set(alphabet) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(alphabet.values()) == list(range(256))


def test_added_tokens_stream_as_the_library_decodes_them(tmp_path):
    odd = ["€", "Ġqqq", "a b c", "日本", "Ġ日", "ĢĠ", "\xad"]
    extra = {str(50257 + n): {"content": text, "special": False} for n, text in enumerate(odd)}
    tokenizer = load_tokenizer(gpt2_folder(tmp_path, tokenizer_config={"added_tokens_decoder": extra}))
    ids = [32] + [token for text in odd for token in (*tokenizer.encode(text), 32)]
    assert streamed(tokenizer, [], ids) == tokenizer.decode(ids)


def test_a_stop_text_of_chinese_characters_is_found_in_what_is_shown(bert):
    ids = bert.encode("我们 我 a")
    for stop, shown in (("们b", " 我们我 a"), ("们我", " 我")):
        stops, stream = StopText(stop), bert.stream(bert.encode("a"))
        assert "".join(stops.feed(stream.add(token)) for token in ids) + stops.flush() == shown


def test_bert_streams_what_it_decodes(bert):
    check_streams(bert, any_ids(bert, [bert.vocab_size - 1 - n for n in range(len(WORDS))]), examples=200)


PIECES = ["▁", "▁▁", "▁a", "b", "▁b▁", "c</w>", "</w>", "##d", "d", ".", "'", "\ufffd", "日", "n't", "  ", " "]


BYTES = [f"<0x{byte:02X}>" for byte in (0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0x41, 0x0A)]


DECODERS = {
    "none": None,
    "wordpiece": decoders.WordPiece(cleanup=True),
    "metaspace": decoders.Metaspace(),
    "metaspace never": decoders.Metaspace(prepend_scheme="never"),
    "bpe suffix": decoders.BPEDecoder(),
    "llama": decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
    "gemma": decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    "strip two": decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
    "strip each": decoders.Sequence([decoders.Metaspace(), decoders.Strip("b", 1, 0)]),
    "byte level in a row": decoders.Sequence([decoders.ByteLevel()]),
    "edited after joining": decoders.Sequence([decoders.Fuse(), decoders.Replace("b▁", "x")]),
    "ctc": decoders.CTC(pad_token="▁", word_delimiter_token="."),
}


@pytest.mark.parametrize("clean", [False, True], ids=["", "cleaned up"])
@pytest.mark.parametrize("name", DECODERS)
def test_every_decoder_streams_what_it_decodes(tmp_path, name, clean):
    library = tokenizers.Tokenizer(
        models.WordLevel({piece: at for at, piece in enumerate([*PIECES, *BYTES])}, unk_token=".")
    )
    library.decoder = DECODERS[name]
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"clean_up_tokenization_spaces": clean}))
    tokenizer = load_tokenizer(tmp_path)

    check_streams(tokenizer, any_ids(tokenizer, [0, len(PIECES), len(PIECES) + 1, len(PIECES) + 2]), examples=40)


def test_streaming_decodes_a_few_tokens_at_a_time_however_long_the_text(bert):
    lengths = []

    def decode(ids):
        lengths.append(len(ids))
        return " ".join("word" if token else "" for token in ids)

    source = WindowText(decode, lambda _: False)
    for at in range(2000):
        source.add(at % 7)
    assert max(lengths) < 10 and len(lengths) < 3 * 2000
