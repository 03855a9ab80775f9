"""Long texts are tokenized in pieces, with the ids of the whole text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from mlxgen.text import pieces as module
from mlxgen.text import tokenizers_library
from mlxgen.text.pieces import pieces
from mlxgen.text.tokenizer import load_tokenizer

from ..support.vocabularies import gpt2_folder

WORDS = st.sampled_from(["king", " ", "  ", "\n", "'s", " the", "1984", "ü", " 中", "don't", "\u00a0", "!", "", "A"])


@given(st.lists(WORDS, max_size=40).map("".join), st.integers(0, 12))
def test_pieces_make_up_the_text_and_are_cut_between_words(text: str, size: int) -> None:
    found = list(pieces(text, size))
    assert "".join(found) == text
    assert all(len(piece) >= size and piece[-1].isalpha() for piece in found[:-1])
    assert all(piece.startswith(" ") for piece in found[1:])


def test_the_ids_are_those_of_the_whole_text(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = gpt2_folder(tmp_path_factory.mktemp("gpt2"))
    ours = load_tokenizer(folder)
    theirs = tokenizers.ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))

    @given(st.lists(WORDS, max_size=60).map("".join))
    def same(text: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            cut: list[str] = []
            patch.setattr(tokenizers_library, "pieces", lambda text: cut.extend(module.pieces(text, 3)) or cut)
            assert ours.encode(text) == theirs.encode(text).ids

    same()
    assert len(list(pieces("the king " * 100_000))) > 2


def test_texts_are_not_cut_where_an_added_token_may_reach_across_words(tmp_path: Path) -> None:
    folder = gpt2_folder(tmp_path / "gpt2", added_tokens={"the king": 50257})
    text = "so the king " * 5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizers_library, "pieces", lambda text: module.pieces(text, 1))
        tokenizer = load_tokenizer(folder)
        assert tokenizer.encode(text).count(50257) == 5
    assert json.loads((folder / "added_tokens.json").read_text()) == {"the king": 50257}
