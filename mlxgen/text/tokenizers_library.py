"""Vocabularies that the tokenizers library reads: tokenizer.json, and GPT-2's vocab.json with merges.txt."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import tokenizers

from mlxgen.errors import ModelError
from mlxgen.text.backend import Backend, ids_before
from mlxgen.text.pieces import pieces
from mlxgen.text.tokenizer_files import OTHER_VOCABULARIES, add_tokens, load_or_raise
from mlxgen.text.unknown_text import unknown_finder

END_OF_TEXT = "<|endoftext|>"  # GPT-2's only special token: beginning, end and unknown
END_OF_TEXT_ID = 50256  # its number in GPT-2's own vocabulary
SAMPLE = "a"  # a text, to see what the tokenizer adds to it


def read_whole(folder: Path, settings: Mapping[str, Any], kind: str) -> Backend:
    """The tokenizer of tokenizer.json."""
    path = folder / "tokenizer.json"
    library = load_or_raise(path, lambda: tokenizers.Tokenizer.from_file(str(path)))
    library.no_truncation()
    library.no_padding()
    _override_prefix_space(library, settings, kind)
    return _backend(library, folder, settings, kind)


def read_byte_level(folder: Path, settings: Mapping[str, Any], kind: str) -> Backend:
    """The tokenizer of vocab.json and merges.txt."""
    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    model = load_or_raise(vocab, lambda: tokenizers.models.BPE.from_file(str(vocab), str(merges)))
    library = tokenizers.Tokenizer(model)
    spaced = bool(settings.get("add_prefix_space", False))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    library.decoder = tokenizers.decoders.ByteLevel()
    # tokenizer.json says itself what it adds; these files leave that to the setting.
    return _backend(library, folder, settings, kind, add_bos=bool(settings.get("add_bos_token")))


def has_byte_level_files(folder: Path) -> bool:
    """Whether the folder has vocab.json and merges.txt. Raises ModelError where only one of them is there."""
    there = [name for name in ("vocab.json", "merges.txt") if (folder / name).is_file()]
    if there == ["merges.txt"] or (
        there == ["vocab.json"] and not any((folder / name).is_file() for name in OTHER_VOCABULARIES)
    ):
        missing = "vocab.json" if there == ["merges.txt"] else "merges.txt"
        raise ModelError(f"{folder / there[0]} exists but {missing} does not: download the tokenizer again")
    return len(there) == 2


def _backend(
    library: tokenizers.Tokenizer, folder: Path, settings: Mapping[str, Any], kind: str, *, add_bos: bool = False
) -> Backend:
    end = library.token_to_id(END_OF_TEXT)
    if kind == "GPT2Tokenizer" or (not kind and end is not None) or end == END_OF_TEXT_ID:
        defaults = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT)
        settings = defaults | {role: value for role, value in settings.items() if value is not None}
    specials = add_tokens(library, folder, settings)
    if library.get_vocab_size(with_added_tokens=False) == 0:
        raise ModelError(f"the tokenizer in {folder} has an empty vocabulary: download it again")
    bos = library.token_to_id(specials.get("bos_token", ""))
    is_bpe = isinstance(library.model, tokenizers.models.BPE)
    forced = settings.get("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output")
    return Backend(
        encode=encoder(library),
        decode=lambda ids: library.decode(ids, skip_special_tokens=False),
        piece=library.id_to_token,
        vocabulary=library.get_vocab,
        base_size=library.get_vocab_size(with_added_tokens=False),
        decoder=decoder_of(library),
        bos_token_id=bos,
        eos_token_id=library.token_to_id(specials.get("eos_token", "")),
        start_ids=([] if bos is None else [bos]) if add_bos else start_ids(library),
        clean_up=bool(settings.get("clean_up_tokenization_spaces")) and (not is_bpe or bool(forced)),
        splits_ideographs=splits_ideographs(library),
        find_unknown=unknown_finder(library),
        special_ids=lambda: added_specials(library),
        describe=library.to_str,
    )


def added_specials(library: tokenizers.Tokenizer) -> list[int]:
    """The added tokens that are special: they stand for no text."""
    return [number for number, token in library.get_added_tokens_decoder().items() if token.special]


def decoder_of(library: tokenizers.Tokenizer) -> Mapping[str, Any]:
    """The library's description of its decoder."""
    return json.loads(library.decoder.__getstate__()) if library.decoder is not None else {}


def start_ids(library: tokenizers.Tokenizer) -> list[int]:
    """What the library's post-processor puts before a text."""
    if library.post_processor is None:
        return []

    def encode(text: str, added: bool = False) -> list[int]:
        return list(library.encode(text, add_special_tokens=added).ids)

    with suppress(Exception):  # a vocabulary without an unknown token refuses what it does not know
        for sample in (SAMPLE, *library.get_vocab(with_added_tokens=False)):
            if plain := encode(sample):
                return ids_before(plain, encode(sample, True))
    return []


def splits_ideographs(library: tokenizers.Tokenizer) -> bool:
    """Whether the tokenizer makes every Chinese character a word of its own, and decodes words with spaces between."""
    if library.normalizer is None or decoder_of(library).get("type") != "WordPiece":
        return False
    return library.normalizer.normalize_str("中").strip() != library.normalizer.normalize_str("中")


def _override_prefix_space(library: tokenizers.Tokenizer, settings: Mapping[str, Any], kind: str) -> None:
    """Apply add_prefix_space from tokenizer_config.json, which takes precedence. GPT2Tokenizer's default is False."""
    stated = settings.get("add_prefix_space", False if kind == "GPT2Tokenizer" else None)
    if stated is not None and isinstance(library.pre_tokenizer, tokenizers.pre_tokenizers.ByteLevel):
        library.pre_tokenizer.add_prefix_space = bool(stated)


def encoder(library: tokenizers.Tokenizer) -> Callable[[str], list[int]]:
    """Encode a text without special tokens; a long one piece by piece where that gives the same ids."""

    def encode(text: str) -> list[int]:
        return list(library.encode(text, add_special_tokens=False).ids)

    if not _splits_words(library):
        return encode
    return lambda text: [token for piece in pieces(text) for token in encode(piece)]


def _splits_words(library: tokenizers.Tokenizer) -> bool:
    """Whether GPT-2's pre-tokenizer alone decides where words begin: no added token reaches across a space."""
    splitter = json.loads(library.pre_tokenizer.__getstate__()) if library.pre_tokenizer is not None else {}
    added = library.get_added_tokens_decoder().values()
    plain = all(" " not in token.content and not (token.lstrip or token.rstrip) for token in added)
    is_byte_level = splitter.get("type") == "ByteLevel" and splitter.get("use_regex", True)
    return bool(is_byte_level and plain and library.normalizer is None)
