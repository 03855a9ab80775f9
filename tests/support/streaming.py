"""Streamed text against decoding the whole list at once."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.text.tokenizer import Tokenizer


def new_text(decode: Any, context: list[int], ids: list[int]) -> str:
    """What decoding everything at once adds to the context's own text."""
    whole = decode(context + ids)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(decode(context), whole, strict=False))
    return whole[len(list(same)) :]


def streamed(tokenizer: Tokenizer, context: list[int], ids: list[int]) -> str:
    stream = tokenizer.stream(context)
    shown = ""
    expected = new_text(tokenizer.decode, context, ids)
    for token in ids:
        shown += stream.add(token)
        assert expected.startswith(shown)  # nothing is ever taken back, and no half character was shown
    return shown + stream.flush()


def any_ids(tokenizer: Tokenizer, favourites: list[int], without: list[int] | None = None) -> Any:
    """Token ids cut anywhere into context and continuation, the tricky ones often."""
    every = sorted({*range(tokenizer.vocab_size)} - {*(without or [])})
    ids = st.lists(st.sampled_from(favourites) | st.sampled_from(every), max_size=16)
    return st.tuples(ids, st.integers(0, 16)).map(lambda drawn: (drawn[0][: drawn[1]], drawn[0][drawn[1] :]))


def check_streams(tokenizer: Tokenizer, ids: Any, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(ids)
    def check(parts: Any) -> None:
        assert streamed(tokenizer, *parts) == new_text(tokenizer.decode, *parts)

    check()
