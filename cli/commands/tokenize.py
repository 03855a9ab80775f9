"""`mlxgen tokenize`: the tokens of a text, and the text of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import click

from mlxgen.cli.options import model_option, revision_option
from mlxgen.cli.output import count, visible, write, write_json
from mlxgen.cli.prompt import read_prompt_or_ids

if TYPE_CHECKING:
    from mlxgen.text.tokenizer import Tokenizer


@click.command()
@click.argument("text", required=False)
@model_option
@revision_option
@click.option(
    "--ids",
    metavar="IDS",
    help='Print the text of token ids, such as "464 3290" or "[464, 3290]"; "-" reads them from standard input.',
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def tokenize(text: str | None, model: str, revision: str | None, ids: str | None, as_json: bool) -> None:
    """Show the tokens of TEXT and their ids: what `mlxgen generate` makes of it as a prompt.

    Without TEXT, or for "-", it is read from standard input, without its last line break. In the tokens, · is a space,
    ↵ a line break and → a tab; bytes that are not a whole character are shown as \\xe2. Only the tokenizer is loaded,
    not the weights.

    --json prints an object with these keys: model, text, tokens (ids), pieces (their spelling in the vocabulary),
    texts, special (for each token, whether it stands for no text, such as an end token), n_tokens.
    """
    given = read_prompt_or_ids(text, ids)
    tokenizer = open_tokenizer(model, revision)
    if isinstance(given, str):
        whole, tokens = given, tokenizer.with_start(tokenizer.encode(given))
    else:
        whole, tokens = tokenizer.decode(given), given
    if as_json:
        write_json(
            {
                "model": model,
                "text": whole,
                "tokens": tokens,
                "pieces": [tokenizer.token(token) for token in tokens],
                "texts": [tokenizer.token_text(token) for token in tokens],
                "special": [tokenizer.is_special(token) for token in tokens],
                "n_tokens": len(tokens),
            }
        )
    elif ids is not None:
        write(whole + "\n")
    else:
        _write_tokens(tokenizer, tokens)
        write(f"{count(len(tokens), 'token')}, {count(len(whole), 'character')}\n")


def open_tokenizer(name: str, revision: str | None) -> Tokenizer:
    """The tokenizer of a model, without its weights, which are not downloaded either. Raises ModelError."""
    from mlxgen.network.config import read_config
    from mlxgen.reading import reading
    from mlxgen.text.tokenizer import load_tokenizer
    from mlxgen.weights import resolve

    folder = resolve(name, revision, weights=False)
    with reading(folder):
        return load_tokenizer(folder, n_embeddings=read_config(folder).vocab_size)


def _write_tokens(tokenizer: Tokenizer, tokens: Sequence[int]) -> None:
    """Print a line per token: its id, its text, and whether it is special."""
    width = max((len(str(token)) for token in tokens), default=0)
    for special, group in groupby(tokens, tokenizer.is_special):
        mark = "  (special)" if special else ""
        lines = (f"{token:>{width}}  {visible(tokenizer.token_text(token))}{mark}\n" for token in group)
        write("".join(lines), "yellow" if special else None)
