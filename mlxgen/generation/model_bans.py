"""What the rules of a request forbid, by the token ids of a model."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from mlxgen.errors import MlxgenError, OptionError, printable
from mlxgen.model import Model
from mlxgen.sampling.bans import Bans
from mlxgen.sampling.samplers import Sampling


def model_bans(sampling: Sampling, model: Model, end_tokens: Collection[int]) -> Bans:
    """The bans of a request whose answer these tokens end. Raises OptionError for ids outside the vocabulary, a text
    without tokens, a bad word that is an end token, and bans that always leave no token.
    """
    words = [ids for word in sampling.bad_words for ids in ([word] if isinstance(word, tuple) else _ids(word, model))]
    _check_ids("bad_words", [token for word in words for token in word], model)
    _check_ids("suppress_tokens", sampling.suppress_tokens, model)
    if wrong := [word[0] for word in words if len(word) == 1 and word[0] in end_tokens]:
        raise OptionError(
            f"bad_words has the end token {wrong[0]}; ignore_eos goes on after it, suppress_tokens bans it"
        )
    ends = tuple(sorted(end_tokens)) if sampling.min_tokens else ()
    if len({*sampling.suppress_tokens, *ends, *(word[0] for word in words if len(word) == 1)}) >= _size(model):
        raise OptionError("bad_words, suppress_tokens and min_tokens ban every token; leave some")
    return Bans(
        no_repeat_ngram=sampling.no_repeat_ngram or 0,
        window=model.config.n_positions if sampling.no_repeat_ngram else 0,
        bad_words=tuple(dict.fromkeys(words)),
        min_tokens=(sampling.min_tokens or 0) if ends else 0,
        end_tokens=ends,
        suppress_tokens=tuple(sampling.suppress_tokens),
    )


def _ids(text: str, model: Model) -> list[tuple[int, ...]]:
    """The token ids of a bad word: as a text of its own, after a comma and, unless it begins with a space, after one.

    For a byte-level BPE, the first two are the same. Sentencepiece models put a space before a text of its own.
    """
    encode = model.tokenizer.encode
    try:
        found = [tuple(encode(text))]
    except MlxgenError as error:
        raise OptionError(f"bad_words has {printable(repr(text))}: {error}") from None
    if not all(found):
        raise OptionError(f"bad_words has {printable(repr(text))}, for which the model has no token")
    if not text[0].isspace():
        with suppress(OptionError):  # a vocabulary without a space
            found.append(tuple(encode(" " + text)))
    with suppress(OptionError):  # or without a comma
        comma, after = encode(","), tuple(encode("," + text))
        if len(after) > len(comma) and after[: len(comma)] == tuple(comma):
            found.append(after[len(comma) :])
    return found


def _check_ids(name: str, ids: Collection[int], model: Model) -> None:
    if (highest := max(ids, default=0)) >= _size(model):
        raise OptionError(f"{name} has token {highest}, but the highest token id is {_size(model) - 1}")


def _size(model: Model) -> int:
    return model.config.vocab_size
