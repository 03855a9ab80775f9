"""Tokenizers: text to token ids and back.

The tokenizers library handles byte-level BPE and every ``tokenizer.json``. transformers handles all other vocabularies
(BERT's ``vocab.txt``, sentencepiece), and is imported only for these.
"""

import json
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from mlxgen.errors import ModelError, OptionError
from mlxgen.json_file import read_json
from mlxgen.text.detokenizer import (
    BYTE_PIECE,
    ByteText,
    StreamingDecoder,
    TextSource,
    WholeText,
    WindowText,
    clean_up_spaces,
    is_local,
    piece_bytes,
)
from mlxgen.text.tokenizer_files import add_tokens, chat_template, load_or_raise, read_settings

# Tokenizer classes whose vocab.json and merges.txt are GPT-2's byte-level BPE; "" if the folder names none.
BYTE_LEVEL_CLASSES = ("", "GPT2Tokenizer", "PreTrainedTokenizer", "TokenizersBackend")
OTHER_VOCABULARIES = ("vocab.txt", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model")
END_OF_TEXT = "<|endoftext|>"  # GPT-2's only special token: beginning, end and unknown


@dataclass(frozen=True, slots=True)
class Backend:
    """The functions that are needed of a tokenizer, from either library."""

    encode: Callable[[str], list[int]]  # adds no special tokens
    decode: Callable[[Sequence[int]], str]  # keeps special tokens, does not clean up spaces
    piece: Callable[[int], str | None]
    vocabulary: Callable[[], Mapping[str, int]]
    base_size: int  # number of tokens without added tokens
    decoder: Mapping[str, Any]  # the tokenizers library's description of its decoder, {} if unknown


class Tokenizer:
    """The tokenizer of a model folder.

    n_embeddings: number of rows of the model's embedding, if known. Ids below it that are not in the vocabulary (the
    embedding may be padded to a round size) decode to "". Raises ModelError if the base vocabulary is larger. Added
    tokens beyond it, such as a padding token that the model was not trained on, raise OptionError if a text has them.
    bos_token_id, eos_token_id: None if there is no such token, or the model has no embedding for it.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        chat_template: str | None = None,
        clean_up: bool = False,
        n_embeddings: int | None = None,
    ) -> None:
        if n_embeddings is not None and backend.base_size > n_embeddings:
            raise ModelError(
                f"the vocabulary has {backend.base_size} tokens but the model's embedding only {n_embeddings}: "
                "the tokenizer files belong to another model"
            )
        self._backend = backend
        self._clean_up = clean_up
        embedded = n_embeddings or 2**31
        self.bos_token_id = bos_token_id if bos_token_id is not None and bos_token_id < embedded else None
        self.eos_token_id = eos_token_id if eos_token_id is not None and eos_token_id < embedded else None
        self.chat_template = chat_template
        self.n_embeddings = n_embeddings

    @cached_property
    def vocab_size(self) -> int:
        """The highest token id plus 1, including added tokens."""
        return max(self._backend.vocabulary().values(), default=-1) + 1

    def encode(self, text: str) -> list[int]:
        """Tokenize a text. Special tokens in the text are recognized; none are added.

        Raises OptionError for text that is not valid Unicode, or that has a token without an embedding in the model.
        """
        if not isinstance(text, str):
            raise OptionError(f"a prompt must be text, not {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise OptionError(
                f"the text has an invalid character (lone surrogate U+{ord(text[error.start]):04X}) at position "
                f"{error.start}: remove it, or read the text as UTF-8"
            ) from None
        ids = self._backend.encode(text)
        if self.n_embeddings is not None and ids and (top := max(ids)) >= self.n_embeddings:
            raise OptionError(
                f"the text contains {self.token(top)!r} (token {top}), for which the model has no embedding "
                f"(it has {self.n_embeddings}): leave it out"
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Decode a list of token ids, including special tokens. Raises OptionError for an invalid id."""
        text = self._backend.decode([self._check(token) for token in ids])
        return clean_up_spaces(text) if self._clean_up else text

    def token(self, token: int) -> str:
        """A token's spelling in the vocabulary; "" for an id without a token. Raises OptionError for an invalid id."""
        return self._backend.piece(self._check(token)) or ""

    def token_bytes(self, token: int) -> int:
        """How many bytes of UTF-8 a token has in the middle of a text. It may be part of a character."""
        piece = self.token(token)
        if self._backend.decoder.get("type") == "ByteLevel":
            return len(piece_bytes(piece))
        if self._is_byte(token):
            return 1
        once, twice = (len(self._backend.decode([token] * times).encode()) for times in (1, 2))
        return twice - once  # the first token of a text may lose its space

    def stream(self, context: Sequence[int] = ()) -> StreamingDecoder:
        """A decoder for tokens that arrive one at a time after ``context``."""
        decoder = self._backend.decoder
        source: TextSource
        if decoder.get("type") == "ByteLevel":
            source = ByteText(self._backend.piece)
        elif not is_local(decoder):
            source = WholeText(self._backend.decode)
        else:
            has_byte_pieces = '"ByteFallback"' in json.dumps(decoder)
            source = WindowText(self._backend.decode, self._is_byte if has_byte_pieces else lambda _: False)
        return StreamingDecoder(source, self._check, self._clean_up, context)

    def _is_byte(self, token: int) -> bool:
        return BYTE_PIECE.fullmatch(self._backend.piece(token) or "") is not None

    def _check(self, token: int) -> int:
        try:
            token = operator.index(token)
        except TypeError:
            raise OptionError(f"a token id must be a whole number, not {token!r}") from None
        known = 0 <= token < 2**31 and (
            token < (self.n_embeddings or 0) or self._backend.piece(token) is not None or token < self.vocab_size
        )
        if not known:
            highest = max(self.vocab_size, self.n_embeddings or 0) - 1
            raise OptionError(f"token id {token} is not in the vocabulary (ids go from 0 to {highest})")
        return token


def load_tokenizer(folder: Path, *, n_embeddings: int | None = None) -> Tokenizer:
    """Load the tokenizer of a model folder. Downloads nothing and runs no code from the folder.

    n_embeddings: see Tokenizer. Raises ModelError for missing or damaged files.
    """
    settings = read_settings(folder)
    named = settings.get("tokenizer_class")
    if named is None and (folder / "config.json").is_file():
        named = read_json(folder / "config.json").get("tokenizer_class")
    kind = str(named or "").removesuffix("Fast")
    if (folder / "tokenizer.json").is_file():
        whole = folder / "tokenizer.json"
        library = load_or_raise(whole, lambda: tokenizers.Tokenizer.from_file(str(whole)))
        library.no_truncation()
        library.no_padding()
        _override_prefix_space(library, settings, kind)
    elif _has_byte_level_files(folder) and kind in BYTE_LEVEL_CLASSES:
        library = _byte_level(folder, settings)
    elif kind not in BYTE_LEVEL_CLASSES or any((folder / name).is_file() for name in OTHER_VOCABULARIES):
        return _through_transformers(folder, settings, kind, n_embeddings)
    else:
        raise ModelError(
            f"no tokenizer in {folder}: expected tokenizer.json, or vocab.json with merges.txt, "
            f"or one of {', '.join(OTHER_VOCABULARIES)}"
        )
    if kind == "GPT2Tokenizer" or (not kind and library.token_to_id(END_OF_TEXT) is not None):
        defaults = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT)
        settings = defaults | {role: value for role, value in settings.items() if value is not None}
    specials = add_tokens(library, folder, settings)
    if library.get_vocab_size(with_added_tokens=False) == 0:
        raise ModelError(f"the tokenizer in {folder} has an empty vocabulary: download it again")
    decoder = json.loads(library.decoder.__getstate__()) if library.decoder is not None else {}
    is_bpe = isinstance(library.model, tokenizers.models.BPE)
    forced = settings.get("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output")
    return Tokenizer(
        Backend(
            encode=lambda text: list(library.encode(text, add_special_tokens=False).ids),
            decode=lambda ids: library.decode(ids, skip_special_tokens=False),
            piece=library.id_to_token,
            vocabulary=library.get_vocab,
            base_size=library.get_vocab_size(with_added_tokens=False),
            decoder=decoder,
        ),
        bos_token_id=library.token_to_id(specials.get("bos_token", "")),
        eos_token_id=library.token_to_id(specials.get("eos_token", "")),
        chat_template=chat_template(folder, settings),
        clean_up=bool(settings.get("clean_up_tokenization_spaces")) and (not is_bpe or bool(forced)),
        n_embeddings=n_embeddings,
    )


def _has_byte_level_files(folder: Path) -> bool:
    there = [name for name in ("vocab.json", "merges.txt") if (folder / name).is_file()]
    if there == ["merges.txt"] or (
        there == ["vocab.json"] and not any((folder / name).is_file() for name in OTHER_VOCABULARIES)
    ):
        missing = "vocab.json" if there == ["merges.txt"] else "merges.txt"
        raise ModelError(f"{folder / there[0]} exists but {missing} does not: download the tokenizer again")
    return len(there) == 2


def _byte_level(folder: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    model = load_or_raise(vocab, lambda: tokenizers.models.BPE.from_file(str(vocab), str(merges)))
    library = tokenizers.Tokenizer(model)
    spaced = bool(settings.get("add_prefix_space", False))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    library.decoder = tokenizers.decoders.ByteLevel()
    return library


def _override_prefix_space(library: tokenizers.Tokenizer, settings: Mapping[str, Any], kind: str) -> None:
    """Apply add_prefix_space from tokenizer_config.json, which takes precedence. GPT2Tokenizer's default is False."""
    stated = settings.get("add_prefix_space", False if kind == "GPT2Tokenizer" else None)
    if stated is not None and isinstance(library.pre_tokenizer, tokenizers.pre_tokenizers.ByteLevel):
        library.pre_tokenizer.add_prefix_space = bool(stated)


def _through_transformers(folder: Path, settings: Mapping[str, Any], kind: str, n_embeddings: int | None) -> Tokenizer:
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # silences the advice to install torch
    import transformers

    def build() -> Any:
        guess = not kind and (folder / "vocab.txt").is_file()
        loader = transformers.BertTokenizer if guess else transformers.AutoTokenizer
        return loader.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)

    hf = load_or_raise(folder, build)
    pieces = {number: piece for piece, number in hf.get_vocab().items()}
    if len(pieces) <= len(hf.all_special_tokens):
        raise ModelError(
            f"transformers found no vocabulary in {folder}: set tokenizer_class in its tokenizer_config.json"
        )
    library = getattr(hf, "backend_tokenizer", None)
    described = isinstance(library, tokenizers.Tokenizer) and library.decoder is not None
    is_bpe = isinstance(library, tokenizers.Tokenizer) and isinstance(library.model, tokenizers.models.BPE)
    return Tokenizer(
        Backend(
            encode=lambda text: list(hf.encode(text, add_special_tokens=False)),
            decode=lambda ids: str(
                hf.decode(
                    [token for token in ids if token in pieces],
                    skip_special_tokens=False,
                    clean_up_tokenization_spaces=False,
                )
            ),
            piece=pieces.get,
            vocabulary=hf.get_vocab,
            base_size=hf.vocab_size,
            decoder=json.loads(library.decoder.__getstate__()) if library is not None and described else {},
        ),
        bos_token_id=hf.bos_token_id,
        eos_token_id=hf.eos_token_id,
        chat_template=chat_template(folder, settings),
        clean_up=bool(hf.clean_up_tokenization_spaces) and not is_bpe,
        n_embeddings=n_embeddings,
    )
