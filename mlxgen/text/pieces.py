"""Cutting a long text where no token can span the cut, so that it can be tokenized piece by piece.

The tokenizers library takes about 200 times a text's size in memory. GPT-2's pre-tokenizer (Radford et al., 2019,
`encoder.py`) begins a new word at a space between two letters, so the ids of the pieces are those of the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

PIECE = 1 << 18  # characters
CUT = re.compile(r"(?<=[a-zA-Z])(?= [a-zA-Z])")


def pieces(text: str, size: int = PIECE) -> Iterator[str]:
    """Pieces of at least ``size`` characters, each but the last ending at a cut. Joined, they are the text."""
    start = 0
    while len(text) - start > size and (cut := CUT.search(text, start + size)):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]
