"""Tokenizers: text to token ids and back.

The tokenizers library handles byte-level BPE and every ``tokenizer.json``, sentencepiece its own models, and
transformers all other vocabularies (BERT's ``vocab.txt``). The latter two are imported only for these.
"""

import json
import operator
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mlxgen.errors import ModelError, OptionError, reason_of, shown
from mlxgen.json_file import read_json
from mlxgen.lfs_pointer import check_not_pointer
from mlxgen.text.backend import Backend
from mlxgen.text.detokenizer import (
    ALPHABET,
    BYTE_PIECE,
    NOT_A_CHARACTER,
    ByteText,
    StreamingDecoder,
    TextSource,
    WholeText,
    WindowText,
    is_local,
    piece_bytes,
)
from mlxgen.text.sentencepiece_library import model_file, read_sentencepiece
from mlxgen.text.spaces import CLEAN_UP, Edit, IdeographJoiner, Replacer, clean_up_spaces, join_ideographs
from mlxgen.text.tokenizer_files import OTHER_VOCABULARIES, chat_template, read_settings
from mlxgen.text.tokenizers_library import has_byte_level_files, read_byte_level, read_whole
from mlxgen.text.transformers_library import read_through_transformers

# Tokenizer classes whose vocab.json and merges.txt are GPT-2's byte-level BPE; "" if the folder names none.
BYTE_LEVEL_CLASSES = ("", "GPT2Tokenizer", "PreTrainedTokenizer", "TokenizersBackend")


class Tokenizer:
    """The tokenizer of a model folder.

    n_embeddings: number of rows of the model's embedding, if known. Ids below it that are not in the vocabulary (the
    embedding may be padded to a round size) decode to "". Raises ModelError if the base vocabulary is larger. Added
    tokens beyond it, such as a padding token that the model was not trained on, raise OptionError if a text has them.
    bos_token_id, eos_token_id: None if there is no such token, or the model has no embedding for it. start_ids: the
    tokens that the tokenizer itself puts before a text, see with_start.
    """

    def __init__(self, backend: Backend, *, chat_template: str | None = None, n_embeddings: int | None = None) -> None:
        if n_embeddings is not None and backend.base_size > n_embeddings:
            raise ModelError(
                f"the vocabulary has {backend.base_size} tokens but the model's embedding only {n_embeddings}: "
                "the tokenizer files belong to another model"
            )
        self._backend = backend
        embedded = n_embeddings or 2**31
        self.bos_token_id, self.eos_token_id = (
            number if number is not None and number < embedded else None
            for number in (backend.bos_token_id, backend.eos_token_id)
        )
        self.start_ids = tuple(number for number in backend.start_ids if number < embedded)
        self.chat_template = chat_template
        self.n_embeddings = n_embeddings

    def __repr__(self) -> str:
        return f"Tokenizer(vocab_size={self.vocab_size}, eos_token_id={self.eos_token_id})"

    @cached_property
    def vocab_size(self) -> int:
        """The highest token id plus 1, including added tokens."""
        return max(self._backend.vocabulary().values(), default=-1) + 1

    @cached_property
    def longest_token(self) -> int | None:
        """The most characters that one token stands for; None where a tokenizer may drop some of a text."""
        if self._backend.decoder.get("type") != "ByteLevel":
            return None
        return max(map(len, self._backend.vocabulary()), default=None)

    def description(self) -> dict[str, Any] | None:
        """The content of a tokenizer.json for this tokenizer; None for those of sentencepiece and transformers."""
        return None if self._backend.describe is None else json.loads(self._backend.describe())

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        own = {number for number in (self.bos_token_id, self.eos_token_id) if number is not None}
        return frozenset({*own, *self.start_ids, *self._backend.special_ids()})

    def encode(self, text: str) -> list[int]:
        """Tokenize a text. Special tokens in the text are recognized; none are added.

        Raises OptionError for text that is not valid Unicode, or that has a character without a token, or a token
        without an embedding in the model.
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
        if self._backend.find_unknown and (found := self._backend.find_unknown(text)):
            raise OptionError(
                f"the model's vocabulary has no token for {_named(text, *found)}: leave it out or replace it"
            )
        try:
            ids = self._backend.encode(text)
        except Exception as error:  # WordPiece without its token for unknown text
            raise ModelError(f"the tokenizer cannot encode the text ({reason_of(error)})") from error
        if self.n_embeddings is not None and ids and (top := max(ids)) >= self.n_embeddings:
            raise OptionError(
                f"the text contains {self.token(top)!r} (token {top}), for which the model has no embedding "
                f"(it has {self.n_embeddings}): leave it out"
            )
        return ids

    def with_start(self, ids: Sequence[int]) -> list[int]:
        """The ids of a text that begins a context: with the start tokens, unless they are there already."""
        start = list(self.start_ids)
        return list(ids) if [*ids[: len(start)]] == start else start + list(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode a list of token ids, including special tokens. Raises OptionError for an invalid id."""
        text = self._backend.decode([self._check(token) for token in ids])
        if self._backend.clean_up:
            text = clean_up_spaces(text)
        return join_ideographs(text) if self._backend.splits_ideographs else text

    def token(self, token: int) -> str:
        """A token's spelling in the vocabulary; "" for an id without a token. Raises OptionError for an invalid id."""
        return self._backend.piece(self._check(token)) or ""

    def token_text(self, token: int) -> str:
        """The text of a single token, with its leading space. Bytes that are not a whole character appear as `\\xe2`.

        Raises OptionError for an invalid id.
        """
        piece, text = self.token(token), self.decode([token])
        if NOT_A_CHARACTER in text and piece and all(character in ALPHABET for character in piece):
            return piece_bytes(piece).decode("utf-8", "backslashreplace")
        return " " + text if piece.startswith("▁") and not text.startswith(" ") else text

    def is_special(self, token: int) -> bool:
        """Whether a token stands for no text: a start or end token, padding, or a mark of turns."""
        return token in self._special_ids

    def token_bytes(self, token: int) -> int:
        """How many bytes of UTF-8 a token has in the middle of a text. It may be part of a character."""
        piece = self.token(token)
        if self._backend.decoder.get("type") == "ByteLevel":
            return len(piece_bytes(piece))
        if self._is_byte(token):
            return 1
        once, twice = (len(self.decode([token] * times).encode()) for times in (1, 2))
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
        edits: list[Edit] = [Replacer(old, new) for old, new in CLEAN_UP] if self._backend.clean_up else []
        if self._backend.splits_ideographs:
            edits.append(IdeographJoiner())
        return StreamingDecoder(source, self._check, edits, context)

    def _is_byte(self, token: int) -> bool:
        return BYTE_PIECE.fullmatch(self._backend.piece(token) or "") is not None

    def _check(self, token: int) -> int:
        try:
            token = operator.index(token)
        except TypeError:
            raise OptionError(f"a token id must be a whole number, not {shown(token)}") from None
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
    for name in ("tokenizer.json", "vocab.json", "merges.txt", *OTHER_VOCABULARIES):
        check_not_pointer(folder / name)
    settings = read_settings(folder)
    named = settings.get("tokenizer_class")
    if named is None and (folder / "config.json").is_file():
        named = read_json(folder / "config.json").get("tokenizer_class")
    kind = str(named or "").removesuffix("Fast")
    if (folder / "tokenizer.json").is_file():
        backend = read_whole(folder, settings, kind)
    elif has_byte_level_files(folder) and kind in BYTE_LEVEL_CLASSES:
        backend = read_byte_level(folder, settings, kind)
    elif file := model_file(folder, kind):
        backend = read_sentencepiece(file, settings, kind)
    elif kind not in BYTE_LEVEL_CLASSES or any((folder / name).is_file() for name in OTHER_VOCABULARIES):
        backend = read_through_transformers(folder, kind)
    else:
        raise ModelError(
            f"no tokenizer in {folder}: expected tokenizer.json, or vocab.json with merges.txt, "
            f"or one of {', '.join(OTHER_VOCABULARIES)}"
        )
    return Tokenizer(backend, chat_template=chat_template(folder, settings), n_embeddings=n_embeddings)


def _named(text: str, begin: int, end: int) -> str:
    """A part of a text and its place, for an error."""
    part = text[begin:end]
    what = f"{part!r} (U+{ord(part):04X})" if len(part) == 1 else repr(part if len(part) <= 40 else f"{part[:39]}…")
    line = text.count("\n", 0, begin) + 1
    column = begin - (text.rfind("\n", 0, begin) + 1) + 1
    return f"{what} at character {column}" + (f" of line {line}" if "\n" in text else "")
