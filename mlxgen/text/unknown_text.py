"""Text that a tokenizer has no token for, where it has no unknown token either. A BPE drops it without a word."""

from collections.abc import Callable, Iterator
from functools import cache

import tokenizers

RARE = "ᚠ𒀀𐤀"  # runes, cuneiform, Phoenician: a vocabulary with all of them is not known
BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]

#: Where the first part of a text without a token begins and ends; None where there is none.
FindUnknown = Callable[[str], tuple[int, int] | None]


def unknown_finder(library: tokenizers.Tokenizer) -> FindUnknown | None:
    """How to find text without a token. None if every text has tokens, as with a byte-level BPE."""
    model = library.model
    vocabulary = library.get_vocab(with_added_tokens=False)
    if not isinstance(model, tokenizers.models.BPE) or model.unk_token is not None:
        words = Words(library)
        return None if all(map(words.takes, RARE)) else words.first_unknown
    if model.byte_fallback and all(piece in vocabulary for piece in BYTE_PIECES):
        return None
    if _is_byte_level(library) and all(byte in vocabulary for byte in tokenizers.pre_tokenizers.ByteLevel.alphabet()):
        return None
    return Alphabet(library).first_unknown


def _is_byte_level(library: tokenizers.Tokenizer) -> bool:
    steps = library.pre_tokenizer, library.normalizer
    return any(step is not None and b'"ByteLevel"' in step.__getstate__() for step in steps)


class Alphabet:
    """The characters that a BPE has tokens for."""

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        self._library, self._normalizer, self._splitter = library, library.normalizer, library.pre_tokenizer
        prefix = library.model.continuing_subword_prefix or ""
        suffix = library.model.end_of_word_suffix or ""
        pieces = library.get_vocab(with_added_tokens=False)
        self._known = {piece.removeprefix(prefix).removesuffix(suffix) for piece in pieces} | set(pieces)
        self._drops = cache(self._misses)

    def first_unknown(self, text: str) -> tuple[int, int] | None:
        """The place of the first character that would be dropped."""
        if not any(map(self._drops, set(text))):
            return None
        for start, part in self._between_added_tokens(text):
            if self._misses(part):  # as a whole: a mark may belong to the character before it
                found = next((at for at, character in enumerate(part) if self._drops(character)), None)
                if found is not None:
                    return start + found, start + found + 1
        return None

    def _misses(self, text: str) -> bool:
        """Whether the text has a symbol without a token, as the model sees it: normalised and split."""
        if self._normalizer is not None:
            text = self._normalizer.normalize_str(text)
        if self._splitter is not None:
            text = "".join(piece for piece, _ in self._splitter.pre_tokenize_str(text))
        return any(symbol not in self._known for symbol in set(text))

    def _between_added_tokens(self, text: str) -> Iterator[tuple[int, str]]:
        """The parts of a text that are not added tokens, and where they begin."""
        added = self._library.get_added_tokens_decoder()
        encoding = self._library.encode(text, add_special_tokens=False)
        start = 0
        for token, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in added:
                yield start, text[start:begin]
                start = end
        yield start, text[start:]


class Words:
    """The words that a model of another kind has tokens for. It raises an error at any other."""

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        self._library = library

    def first_unknown(self, text: str) -> tuple[int, int] | None:
        """The place of the first word that would be refused."""
        if self.takes(text):
            return None
        whole = 0, len(text)
        splitter = self._library.pre_tokenizer
        words = [place for _, place in splitter.pre_tokenize_str(text)] if splitter else []
        return next((place for place in words if not self.takes(text[slice(*place)])), whole)

    def takes(self, text: str) -> bool:
        """Whether the text has tokens."""
        try:
            self._library.encode(text, add_special_tokens=False)
        except Exception:  # the library has no class of its own for it
            return False
        return True
