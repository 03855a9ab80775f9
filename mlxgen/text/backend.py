"""The functions that are needed of a tokenizer, from any library."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxgen.text.unknown_text import FindUnknown


@dataclass(frozen=True, slots=True)
class Backend:
    """A library's tokenizer: its functions, and what its files say about special tokens and spaces."""

    encode: Callable[[str], list[int]]  # adds no special tokens
    decode: Callable[[Sequence[int]], str]  # keeps special tokens, does not clean up spaces
    piece: Callable[[int], str | None]
    vocabulary: Callable[[], Mapping[str, int]]
    base_size: int  # number of tokens without added tokens
    decoder: Mapping[str, Any]  # the tokenizers library's description of its decoder, {} if unknown
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    start_ids: Sequence[int] = ()  # what the tokenizer itself puts before a text
    clean_up: bool = False  # whether decoded text loses the spaces before punctuation
    splits_ideographs: bool = False  # whether every Chinese character is a word of its own, as with BERT
    find_unknown: FindUnknown | None = None  # None where every text has tokens
    special_ids: Callable[[], Collection[int]] = tuple  # tokens that stand for no text, such as an end token
    describe: Callable[[], str] | None = None  # the tokenizers library's own description, its tokenizer.json


def ids_before(plain: Sequence[int], marked: Sequence[int]) -> list[int]:
    """The start tokens of a text's ids, from the ids without and with the special tokens that the tokenizer adds."""
    n = len(plain)
    return next((list(marked[:at]) for at in range(len(marked) - n + 1) if [*marked[at : at + n]] == [*plain]), [])
