"""Any other vocabulary (BERT's vocab.txt, GPT-SW3's sentencepiece model) through transformers, imported only here."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers

from mlxgen.errors import ModelError
from mlxgen.text.backend import Backend, ids_before
from mlxgen.text.tokenizer_files import load_or_raise
from mlxgen.text.tokenizers_library import SAMPLE, decoder_of, splits_ideographs
from mlxgen.text.unknown_text import unknown_finder


def read_through_transformers(folder: Path, kind: str) -> Backend:
    """The tokenizer that transformers makes of a folder's files. Raises ModelError."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # silences the advice to install torch
    import transformers

    def build() -> Any:
        guess = not kind and (folder / "vocab.txt").is_file()
        loader = transformers.BertTokenizer if guess else transformers.AutoTokenizer
        with _without_log():
            return loader.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)

    hf = load_or_raise(folder, build)
    pieces = {number: piece for piece, number in hf.get_vocab().items()}
    if len(pieces) <= len(hf.all_special_tokens):
        raise ModelError(
            f"transformers found no vocabulary in {folder}: set tokenizer_class in its tokenizer_config.json"
        )

    def encode(text: str, *, added: bool = False) -> list[int]:
        with _without_log():  # it would say that a text is longer than the tokenizer's own limit
            return list(hf.encode(text, add_special_tokens=added))

    def decode(ids: Any) -> str:
        known = [token for token in ids if token in pieces]
        return str(hf.decode(known, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    found = getattr(hf, "backend_tokenizer", None)
    library = found if isinstance(found, tokenizers.Tokenizer) else None
    is_bpe = library is not None and isinstance(library.model, tokenizers.models.BPE)
    return Backend(
        encode=encode,
        decode=decode,
        piece=pieces.get,
        vocabulary=hf.get_vocab,
        base_size=hf.vocab_size,
        decoder=decoder_of(library) if library else {},
        bos_token_id=hf.bos_token_id,
        eos_token_id=hf.eos_token_id,
        start_ids=ids_before(encode(SAMPLE), encode(SAMPLE, added=True)),
        clean_up=bool(hf.clean_up_tokenization_spaces) and not is_bpe,
        splits_ideographs=library is not None and splits_ideographs(library),
        find_unknown=unknown_finder(library) if library else None,
        special_ids=lambda: hf.all_special_ids,
    )


@contextmanager
def _without_log() -> Iterator[None]:
    """Keep transformers' log, of which errors are raised anyway, from standard error."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(level)
