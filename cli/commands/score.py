"""`mlxgen score`: the likelihood of a text."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlxgen.cli.completion import complete_file
from mlxgen.cli.options import file_options, model_options, open_model, quiet_option
from mlxgen.cli.output import write, write_json
from mlxgen.cli.progress import progress_bar
from mlxgen.cli.prompt import Utf8Text, read_content, text_of

if TYPE_CHECKING:
    from mlxgen.model import Model
    from mlxgen.scoring import Score

# A token's colour: that of the first line whose probability it reaches.
COLOURS = ((0.5, "green"), (0.1, "cyan"), (0.01, "yellow"), (0.0, "red"))
LONG_TEXT = 2_000  # tokens from which a progress bar is worth showing
JSON_LINE = re.compile(rb'\s*\[?\s*\{\s*"(text|choices|context|id|metadata)"\s*:')  # what a line of JSON may begin with
JSONL_SUFFIXES = (".jsonl", ".ndjson")


@click.command()
@click.argument("source", metavar="[FILE]", default="-", shell_complete=complete_file)
@model_options
@click.option(
    "--context", type=Utf8Text(), default="", metavar="TEXT", help="Text before the scored text: read, but not scored."
)
@click.option(
    "--stride",
    type=click.IntRange(min=1),
    metavar="N",
    help="Move the window by N tokens in a text longer than the model's context.  [default: half the context]",
)
@click.option(
    "--bos/--no-bos", default=True, help="Put the model's start token first, so that the first token is scored too."
)
@click.option("--per-token", is_flag=True, help="Show each token with its log-probability and rank.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@click.option("--jsonl", is_flag=True, help="Score many texts: FILE has one JSON object per line.")
@file_options
@quiet_option
def score(source: str, **given: Any) -> None:
    """Score the text in FILE or on standard input, without its last line break: log-likelihood (nats), cross-entropy
    (nats per token), bits per byte, perplexity.

    --json prints an object with these keys: model, text, tokens (ids), logprobs (natural logarithms), ranks (1 is the
    model's first choice), n_scored, n_bytes, total, loss, bits_per_byte, perplexity. A first token with nothing before
    it has null.

    FILE has many texts with --jsonl, if it is named .jsonl or .ndjson, or if it begins with a JSON object that has one
    of the following keys first. Each line is then a JSON string, or an object with text and optionally context, id,
    metadata. An object may have choices, a list of texts, in place
    of text: each is scored after the context. The result of a text is an object with id, n_scored, n_bytes, total,
    loss, bits_per_byte, perplexity, and with --per-token also tokens, logprobs, ranks. The result of choices has a
    list choices of such objects, ranking (their numbers from 0, the most likely first, by total) and ranking_per_byte.
    Each result has request, a hash of what was asked. OUT is resumed, and shared by mlx.launch, as with `mlxgen
    batch`.
    """
    if given["jsonl"] or Path(source).suffix.lower() in JSONL_SUFFIXES:
        from mlxgen.cli.jsonl.score_lines import score_file

        score_file(source, given)
        return
    content = read_content(source)
    if JSON_LINE.match(content):
        from mlxgen.cli.jsonl.score_lines import score_file

        score_file(source, given, content)
    elif given["output"] != "-" or given["overwrite"]:
        raise click.UsageError("-o and --overwrite are for many texts; add --jsonl, or leave them out")
    else:
        _score_text(text_of(content, source), given)


def _score_text(text: str, given: dict[str, Any]) -> None:
    import mlxgen
    from mlxgen.cli.jsonl.score_lines import SCORE_OPTIONS, score_entries

    model = open_model(given)
    bar = progress_bar("Scoring", quiet=given["quiet"], least=LONG_TEXT)
    found = mlxgen.score(model, text, **{name: given[name] for name in SCORE_OPTIONS}, progress=bar)
    if given["as_json"]:
        write_json({"model": model.name, "text": found.text, **score_entries(found, per_token=True)})
        return
    if given["per_token"]:
        _write_tokens(model, found)
    rows = (
        ("tokens", f"{found.n_scored:,}"),
        ("log-likelihood", f"{found.total:.4f} nats"),
        ("cross-entropy", f"{found.loss:.4f} nats per token"),
        ("bits per byte", f"{found.bits_per_byte:.4f}"),
        ("perplexity", f"{found.perplexity:.4f}"),
    )
    write("".join(f"{name:<15} {value}\n" for name, value in rows))


def _write_tokens(model: Model, found: Score) -> None:
    """Print a line per token: log-probability, rank, text; on a terminal coloured by probability."""
    for token, logprob, rank in zip(found.tokens, found.logprobs, found.ranks, strict=True):
        if logprob is None:
            write(f"{'-':>10} {'-':>6}  {model.tokenizer.decode([token])!r}\n")
        else:
            colour = next(colour for least, colour in COLOURS if math.exp(logprob) >= least)
            write(f"{logprob:10.4f} {rank:>6}  {model.tokenizer.decode([token])!r}\n", colour)
