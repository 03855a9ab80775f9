"""Tokenizers against transformers on the same files, and what they refuse."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from mlxgen.errors import ModelError, OptionError
from mlxgen.text.tokenizer import load_tokenizer

from ..support.streaming import streamed
from ..support.vocabularies import TEXTS, WORDS, bert_folder, gpt2_folder

LETTERS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)


@pytest.fixture(scope="session")
def theirs(gpt2_plain):
    from transformers import GPT2Tokenizer

    return GPT2Tokenizer.from_pretrained(gpt2_plain)


def encode_theirs(hf, text: str) -> list[int]:
    return hf.encode(text, add_special_tokens=False)


# --- the same ids and the same text as transformers -----------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_gpt2_encodes_and_decodes_as_transformers_does(gpt2, theirs, text):
    ids = gpt2.encode(text)
    assert ids == encode_theirs(theirs, text)
    assert gpt2.decode(ids) == theirs.decode(ids) == text


@settings(max_examples=150, deadline=None, derandomize=True)
@given(text=LETTERS)
def test_any_text_comes_back(gpt2, theirs, text):
    ids = gpt2.encode(text)
    assert ids == encode_theirs(theirs, text)
    assert gpt2.decode(ids) == text


def test_gpt2_knows_its_end_token_and_sizes(gpt2, theirs):
    assert gpt2.vocab_size == len(theirs) == 50257
    assert gpt2.eos_token_id == gpt2.bos_token_id == theirs.eos_token_id == 50256
    assert gpt2.token(50256) == "<|endoftext|>"
    assert gpt2.token(gpt2.encode(" the")[0]) == "Ġthe"
    assert gpt2.chat_template is None


SETTINGS = {
    "prefix space": {"tokenizer_config": {"add_prefix_space": True, "tokenizer_class": "GPT2Tokenizer"}},
    "named specials": {
        "tokenizer_config": {"pad_token": "[PAD]", "eos_token": "</s>", "bos_token": "<|endoftext|>"},
    },
    "special tokens map": {
        "special_tokens_map": {
            "eos_token": {"content": "<end>", "lstrip": True, "rstrip": False, "normalized": False},
            "additional_special_tokens": ["<user>", "<bot>"],
        },
    },
    "added_tokens.json": {
        "added_tokens": {"<two>": 50258, "<one>": 50257, "日本": 50259},
        "special_tokens_map": {"eos_token": "<one>"},
    },
    "added_tokens_decoder": {
        "tokenizer_config": {
            "tokenizer_class": "GPT2TokenizerFast",
            "eos_token": "<|im_end|>",
            "added_tokens_decoder": {
                "50256": {"content": "<|endoftext|>", "special": True, "normalized": True},
                "50257": {"content": "<|im_end|>", "special": True},
                "50258": {"content": "Ġword of its own", "special": False, "normalized": False, "rstrip": True},
            },
        },
        "special_tokens_map": {"eos_token": "<|endoftext|>"},
    },
    "clean up asked for": {"tokenizer_config": {"clean_up_tokenization_spaces": True}},
    "clean up forced": {
        "tokenizer_config": {
            "clean_up_tokenization_spaces": True,
            "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": True,
        },
    },
}  # fmt: skip
SPECIAL_TEXT = "<user> hi <bot>日本 <one><two>x  <end> y<|im_end|>[PAD]</s> Ġword of its own  z . it 's<|endoftext|>"


@pytest.mark.parametrize(
    ("name", "saved"),
    [(name, False) for name in SETTINGS]
    + [(name, True) for name in ("prefix space", "special tokens map", "added_tokens_decoder")],
)
def test_settings_and_added_tokens_are_those_of_transformers(tmp_path, name, saved):
    from transformers import GPT2Tokenizer

    folder = gpt2_folder(tmp_path / "written", **SETTINGS[name])
    hf = GPT2Tokenizer.from_pretrained(folder)
    if saved:
        folder = tmp_path / "saved"
        hf.save_pretrained(folder)
        assert (folder / "tokenizer.json").is_file() and not (folder / "vocab.json").exists()
    ours = load_tokenizer(folder)
    for text in [SPECIAL_TEXT, *TEXTS]:
        ids = ours.encode(text)
        assert ids == encode_theirs(hf, text), text
        assert ours.decode(ids) == hf.decode(ids)
    assert (ours.eos_token_id, ours.bos_token_id) == (hf.eos_token_id, hf.bos_token_id)
    assert ours.vocab_size == len(hf)


def test_a_gpt2_vocabulary_without_end_token_gets_one_as_in_transformers(tmp_path):
    from transformers import GPT2Tokenizer

    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer", "pad_token": "<pad>"}')
    ours, hf = load_tokenizer(tmp_path), GPT2Tokenizer.from_pretrained(tmp_path)
    assert ours.encode("ab<pad>b<|endoftext|>") == encode_theirs(hf, "ab<pad>b<|endoftext|>")
    assert ours.eos_token_id == hf.eos_token_id == 3
    assert load_tokenizer(tmp_path, n_embeddings=3).eos_token_id is None  # the model does not know it


def test_tokenizer_json_is_used_without_its_truncation_padding_and_template(tmp_path, gpt2_plain, gpt2):
    library = tokenizers.Tokenizer.from_file(str(saved_json(gpt2_plain, tmp_path)))
    library.enable_truncation(3)
    library.enable_padding(length=8)
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A <|endoftext|>", special_tokens=[("<|endoftext|>", 50256)]
    )
    library.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode("Far far away, and on") == gpt2.encode(" Far far away, and on")


@pytest.mark.parametrize("template", ["{0} $A", "{0} {1} $A {0}", "$A {0}"])
def test_the_start_tokens_of_a_post_processor_are_those_of_transformers(tmp_path, gpt2_plain, template):
    from transformers import AutoTokenizer

    library = tokenizers.Tokenizer.from_file(str(saved_json(gpt2_plain, tmp_path)))
    library.add_special_tokens(["[SEP]"])
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single=template.format("<|endoftext|>", "[SEP]"), special_tokens=[("<|endoftext|>", 50256), ("[SEP]", 50257)]
    )
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    ours, hf = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in ("Hello there", "[SEP]", "é"):
        plain = ours.encode(text)
        assert plain == encode_theirs(hf, text)
        marked = hf(text)["input_ids"]
        assert ours.with_start(plain) == marked[: len(marked) - template.endswith("{0}")]


@pytest.mark.parametrize("kind", [{}, {"tokenizer_class": "GPT2Tokenizer"}, {"bos_token": "[B]"}])
def test_add_bos_token_is_that_of_transformers_and_mlx_lm(tmp_path, kind):
    from mlx_lm.tokenizer_utils import load as load_theirs
    from transformers import GPT2Tokenizer

    folder = gpt2_folder(tmp_path, tokenizer_config={"add_bos_token": True, **kind}, config={"model_type": "gpt2"})
    ours, hf = load_tokenizer(folder), GPT2Tokenizer.from_pretrained(folder)
    start = 50257 if "bos_token" in kind else 50256
    for text in ("Hello there", "", " x"):
        assert ours.with_start(ours.encode(text)) == hf(text)["input_ids"] == [start, *encode_theirs(hf, text)]
    assert ours.with_start(ours.encode("Hello there")) == load_theirs(folder).encode("Hello there")
    spelled = ours.encode(f"{ours.token(start)}Hello")
    assert ours.with_start(spelled) == spelled  # as mlx-lm does: once is enough


def test_a_start_token_that_the_model_does_not_know_is_not_put_before_a_text(tmp_path):
    folder = gpt2_folder(tmp_path, tokenizer_config={"add_bos_token": True, "bos_token": "[B]"})
    assert load_tokenizer(folder).start_ids == (50257,)
    assert load_tokenizer(folder, n_embeddings=50257).start_ids == ()


def saved_json(source: Path, folder: Path) -> Path:
    library = tokenizers.Tokenizer(models.BPE.from_file(str(source / "vocab.json"), str(source / "merges.txt")))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<|endoftext|>"])
    library.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_prefix_space_of_tokenizer_json_gives_way_to_the_config(tmp_path, gpt2_plain, gpt2):
    saved_json(gpt2_plain, tmp_path)
    assert load_tokenizer(tmp_path).encode("Hi") == gpt2.encode(" Hi")
    for config in ({"add_prefix_space": False}, {"tokenizer_class": "GPT2Tokenizer"}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        assert load_tokenizer(tmp_path).encode("Hi") == gpt2.encode("Hi")


@pytest.mark.parametrize("where", ["text", "list", "file"])
def test_chat_template(tmp_path, where):
    value: object = {
        "text": "{{ messages }}",
        "list": [{"name": "tool", "template": "no"}, {"name": "default", "template": "{{ messages }}"}],
        "file": "hidden by the file",
    }[where]
    folder = gpt2_folder(tmp_path, tokenizer_config={"chat_template": value})
    if where == "file":
        (folder / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    assert load_tokenizer(folder).chat_template == "{{ messages }}"


def test_the_bytes_of_tokens_add_up_to_those_of_their_text(gpt2, bert):
    for text in ("the king's 😀 ü", "<|endoftext|>a"):
        assert sum(map(gpt2.token_bytes, gpt2.encode(text))) == len(text.encode())
    ids = bert.encode("unaffable walking")
    assert sum(map(bert.token_bytes, ids)) == len((" " + bert.decode(ids)).encode())


@pytest.mark.parametrize("clean", [True, False])
def test_bert_vocabulary_is_that_of_transformers(tmp_path, clean):
    from transformers import BertTokenizer

    folder = bert_folder(tmp_path, {"tokenizer_class": "BertTokenizer", "clean_up_tokenization_spaces": clean})
    ours, hf = load_tokenizer(folder), BertTokenizer.from_pretrained(folder)
    for text in ["it don't, we 's a.", "我们ab [SEP] A!", "?", "", "unknown we [MASK]"]:
        ids = ours.encode(text)
        assert ids == encode_theirs(hf, text)
        assert ours.decode(ids) == hf.decode(ids).replace("我 们", "我们")
    assert ours.vocab_size == len(hf)
    assert ours.eos_token_id is None


def test_transformers_writes_nothing_to_standard_error(tmp_path):
    bert_folder(tmp_path, {"tokenizer_class": "BertTokenizer", "model_max_length": 3})
    script = (
        "import sys; from pathlib import Path; from mlxgen.text.tokenizer import load_tokenizer\n"
        "print(len(load_tokenizer(Path(sys.argv[1])).encode('we we we we we we')))\n"
        "print('theirs', file=sys.stderr)\n"
        "from transformers import BertTokenizer\n"
        "BertTokenizer.from_pretrained(sys.argv[1])('we we we we we we')"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    ours, _, theirs = done.stderr.partition("theirs\n")
    assert done.stdout == "6\n" and ours == ""
    assert "longer than" in theirs  # its log is as it was for others


def test_bare_vocab_txt_is_a_bert_vocabulary(tmp_path):
    tokenizer = load_tokenizer(bert_folder(tmp_path, {}))
    assert tokenizer.decode(tokenizer.encode("我们 ab")) == "我们 ab"


def test_a_bert_vocabulary_decodes_chinese_as_it_was_written(tmp_path):
    letters = "我们在北京日本語の，。！"
    folder = bert_folder(tmp_path, {"tokenizer_class": "BertTokenizer"})
    with (folder / "vocab.txt").open("a", encoding="utf-8") as file:
        file.write("\n".join(sorted({*letters} - {*WORDS})) + "\n")
    tokenizer = load_tokenizer(folder)
    for text in ("我们在北京。", "日本語の北京，我们！", "we 我们 a"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert streamed(tokenizer, ids[:2], ids[2:]) == text[2:] or text.startswith("we")
        assert sum(map(tokenizer.token_bytes, tokenizer.encode("我们在"))) == len("我们在".encode())


# --- errors: one line, the cause and the way out --------------------------------------------------------------------


def one_line(caught: pytest.ExceptionInfo[BaseException], *words: str) -> None:
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, ["no tokenizer", "tokenizer.json", "vocab.json", "vocab.txt"]),
        ({"tokenizer_config.json": '{"tokenizer_class": "GPT2Tokenizer"}'}, ["no tokenizer"]),
        ({"vocab.json": "{}"}, ["merges.txt"]),
        ({"merges.txt": ""}, ["vocab.json"]),
        ({"vocab.json": "{", "merges.txt": ""}, ["vocab.json"]),
        ({"vocab.json": "{}", "merges.txt": ""}, ["empty"]),
        ({"vocab.json": '{"a": 0}', "merges.txt": "#version: 0.2\na b\n"}, ["vocab.json"]),
        ({"vocab.json": '{"a": -4}', "merges.txt": ""}, ["vocab.json"]),
        ({"tokenizer.json": "{}"}, ["tokenizer.json"]),
        ({"tokenizer.json": "\xff"}, ["tokenizer.json"]),
        ({"tokenizer.json": "{}", "tokenizer_config.json": "{"}, ["tokenizer_config.json"]),
        ({"tokenizer.json": "{}", "tokenizer_config.json": "[]"}, ["tokenizer_config.json", "object"]),
        ({"vocab.json": '{"a": 0}', "merges.txt": "", "tokenizer_config.json": '{"eos_token": 3}'}, ["not text", "3"]),
        (
            {"vocab.json": '{"a": 0}', "merges.txt": "",
             "tokenizer_config.json": '{"added_tokens_decoder": {"x": "y"}}'},
            ["added tokens"],
        ),
        ({"vocab.json": '{"a": 0}', "merges.txt": "", "added_tokens.json": '{"<x>": null}'}, ["added tokens"]),
        ({"spiece.model": "not one"}, ["tokenizer_class"]),
        ({"spiece.model": "not one", "tokenizer_config.json": '{"tokenizer_class": "T5Tokenizer"}'}, ["tokenizer"]),
        ({"tokenizer_config.json": '{"tokenizer_class": "Unheard"}', "vocab.txt": "a"}, ["tokenizer"]),
        (
            {"tokenizer_config.json": '{"auto_map": {"AutoTokenizer": ["a.B", null]}, "tokenizer_class": "B"}',
             "a.py": "import pathlib; pathlib.Path(__file__).with_name('ran').touch()\nclass B: pass\n",
             "vocab.txt": "a"},
            ["tokenizer"],
        ),
    ],
)  # fmt: skip
def test_files_that_cannot_be_read_are_told_in_one_line(tmp_path, files, words):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    for name, content in files.items():
        (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelError) as caught:
        load_tokenizer(tmp_path)
    one_line(caught, *words, str(tmp_path))
    assert not (tmp_path / "ran").exists()  # code from the folder never runs


def test_a_vocabulary_larger_than_the_embedding_is_refused(gpt2_plain):
    with pytest.raises(ModelError) as caught:
        load_tokenizer(gpt2_plain, n_embeddings=50000)
    one_line(caught, "50257", "50000", "another model")


def test_a_padded_embedding_has_ids_without_text(gpt2_plain):
    tokenizer = load_tokenizer(gpt2_plain, n_embeddings=50304)
    assert tokenizer.decode([32, 50300, 33]) == tokenizer.decode([32, 33]) == "AB"
    assert tokenizer.token(50300) == ""
    assert streamed(tokenizer, [], [32, 50300, 33]) == "AB"
    with pytest.raises(OptionError):
        tokenizer.decode([50304])


def test_an_added_token_without_embedding_is_refused_only_when_used(tmp_path, gpt2):
    folder = gpt2_folder(tmp_path, tokenizer_config={"pad_token": "[PAD]"})
    tokenizer = load_tokenizer(folder, n_embeddings=50257)
    assert tokenizer.encode("PAD it") == gpt2.encode("PAD it")
    with pytest.raises(OptionError) as caught:
        tokenizer.encode("[PAD] it")
    one_line(caught, "[PAD]", "50257")


@pytest.mark.parametrize("token", [-1, 50257, 2**31, 2**40, 1.5, "a"])
def test_ids_that_do_not_exist_are_refused(gpt2, token):
    for use in (lambda: gpt2.decode([32, token]), lambda: gpt2.token(token), lambda: gpt2.stream().add(token)):
        with pytest.raises(OptionError) as caught:
            use()
        one_line(caught, str(token))


def test_half_a_character_in_the_text_is_refused(gpt2, bert):
    for tokenizer in (gpt2, bert):
        with pytest.raises(OptionError) as caught:
            tokenizer.encode("ab\ud83dcd")
        one_line(caught, "U+D83D", "position 2")
    with pytest.raises(OptionError):
        gpt2.encode(b"bytes")


def test_byte_level_tokenizers_need_no_transformers(gpt2_plain):
    program = (
        "import sys; from pathlib import Path; from mlxgen.text.tokenizer import load_tokenizer\n"
        f"assert load_tokenizer(Path({str(gpt2_plain)!r})).encode('Far far away')\n"
        "print([name for name in ('transformers', 'mlx_lm', 'torch', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_an_added_token_after_a_gap_is_refused_since_its_number_could_not_be_kept(tmp_path):
    folder = gpt2_folder(tmp_path / "gap", added_tokens={"<one>": 50257, "<far>": 50300})
    with pytest.raises(ModelError, match=r"'<far>' .* has the id 50300, but 50258 would be next"):
        load_tokenizer(folder)
    assert load_tokenizer(gpt2_folder(tmp_path / "good", added_tokens={"<one>": 50257})).encode("<one>") == [50257]
