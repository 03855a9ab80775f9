"""Vocabularies that the sentencepiece library reads: a *.model file whose numbers are the model's token ids.

transformers 5 rebuilds these in the tokenizers library. There, characters without a token get another number
(T5Tokenizer: 2, which is often the end token), and the normalisation that the file itself describes is left out.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from mlxgen.text.backend import Backend
from mlxgen.text.tokenizer_files import add_tokens, load_or_raise
from mlxgen.text.tokenizers_library import added_specials, decoder_of

SPACE = "\u2581"  # sentencepiece's sign for one

#: The classes whose ids are those of the file, and their special tokens where the settings name no others.
CLASSES: Mapping[str, Mapping[str, str]] = {
    "T5Tokenizer": {"eos_token": "</s>", "unk_token": "<unk>"},
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "ReformerTokenizer": {"eos_token": "</s>", "unk_token": "<unk>"},
    "DebertaV2Tokenizer": {"bos_token": "[CLS]", "eos_token": "[SEP]", "cls_token": "[CLS]"},
    "BigBirdTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "[CLS]"},
}
BEGIN_WITH_CLS = ("DebertaV2Tokenizer", "BigBirdTokenizer")


def model_file(folder: Path, kind: str) -> Path | None:
    """The file of sentencepiece's that a tokenizer of this class is in."""
    return min(folder.glob("*.model"), default=None) if kind in CLASSES else None


def read_sentencepiece(path: Path, settings: Mapping[str, Any], kind: str) -> Backend:
    """The tokenizer of a *.model file. Raises ModelError."""
    processor = load_or_raise(path, lambda: _processor(path))
    pieces = {processor.id_to_piece(number): number for number in range(processor.get_piece_size())}
    # It holds the vocabulary and the added tokens, and decodes; it never encodes.
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(pieces))
    library.decoder = _decoder(spaced="".join(processor.encode("a", out_type=str)).startswith(SPACE))
    defaults = {role: text for role, text in CLASSES[kind].items() if text in pieces}
    roles = defaults | {role: value for role, value in settings.items() if value is not None}
    specials = add_tokens(library, path.parent, roles)
    added = {token.content: number for number, token in library.get_added_tokens_decoder().items()}
    split = re.compile("|".join(map(re.escape, sorted(added, key=len, reverse=True))))
    lower = bool(settings.get("do_lower_case"))

    def encode(text: str) -> list[int]:
        ids: list[int] = []
        start = 0
        for found in split.finditer(text) if added else ():
            ids += encode_part(text[start : found.start()])
            ids.append(added[found[0]])
            start = found.end()
        return ids + encode_part(text[start:])

    def encode_part(text: str) -> list[int]:
        return list(processor.encode(text.lower() if lower else text))

    ids = {
        role: library.token_to_id(specials[role])
        for role in ("bos_token", "eos_token", "cls_token")
        if role in specials
    }
    first = ids.get("cls_token") if kind in BEGIN_WITH_CLS else None
    if kind == "LlamaTokenizer" and settings.get("add_bos_token"):
        first = ids.get("bos_token")
    return Backend(
        encode=encode,
        decode=lambda numbers: library.decode(numbers, skip_special_tokens=False),
        piece=library.id_to_token,
        vocabulary=library.get_vocab,
        base_size=len(pieces),
        decoder=decoder_of(library),
        bos_token_id=ids.get("bos_token"),
        eos_token_id=ids.get("eos_token"),
        start_ids=[] if first is None else [first],
        clean_up=bool(settings.get("clean_up_tokenization_spaces")),
        special_ids=lambda: [*added_specials(library), *filter(processor.is_control, pieces.values())],
    )


def _processor(path: Path) -> Any:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    processor.load_from_serialized_proto(path.read_bytes())
    return processor


def _decoder(*, spaced: bool) -> tokenizers.decoders.Decoder:
    """Pieces to text. spaced: the tokenizer puts a space before a text, which decoding takes away again."""
    steps = [tokenizers.decoders.Replace(SPACE, " "), tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    return tokenizers.decoders.Sequence([*steps, *([tokenizers.decoders.Strip(" ", 1, 0)] if spaced else [])])
