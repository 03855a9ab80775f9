"""`mlxgen score`: the likelihood of a text, or of several."""

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
# What a line of JSON may begin with.
JSON_LINE = re.compile(rb'\s*\[?\s*\{\s*"(text|choices|context|prompt|answer|delimiter|id|metadata)"\s*:')
JSONL_SUFFIXES = (".jsonl", ".ndjson")


@click.command()
@click.argument("sources", metavar="[FILE]...", nargs=-1, shell_complete=complete_file)
@model_options
@click.option(
    "--context", type=Utf8Text(), default="", metavar="TEXT", help="Text before the scored text: read, but not scored."
)
@click.option(
    "--delimiter",
    type=Utf8Text(),
    default="",
    metavar="TEXT",
    help="Text between a question and each of its choices, such as a space. It does not count for a choice's length.",
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
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV: a row for each file, and one for their total.")
@click.option("--table", is_flag=True, help="Print a table of the files and their total.  [default: for several files]")
@click.option("--jsonl", is_flag=True, help="Score many texts: FILE has one JSON object per line.")
@file_options
@quiet_option
def score(sources: tuple[str, ...], **given: Any) -> None:
    """Score the text in FILE or on standard input ("-"), without its last line break: log-likelihood (nats),
    cross-entropy (nats per token), bits per byte, perplexity. Several files give a table with a line for each and
    their total, whose averages are over all tokens and bytes.

    --json prints an object with these keys: model, text, tokens (ids), logprobs (natural logarithms), ranks (1 is the
    model's first choice), n_scored, n_bytes, total, loss, bits_per_byte, perplexity. A first token with nothing before
    it has null. Of several files, it has model, files (a list) and total. Each of these has file, texts, n_scored,
    n_bytes, total, loss, bits_per_byte, perplexity, questions, acc, acc_norm, acc_bytes. These are also the columns of
    --csv. What a file does not have is null, and empty in CSV.

    FILE has many texts with --jsonl, if it is named .jsonl or .ndjson, or if it begins with a JSON object that has one
    of the following keys first. Each line is then a JSON string, or an object with text and optionally context (or
    prompt), id, metadata. In place of text, an object may have choices, a list of texts: each is scored after the
    context. It may also have delimiter, and answer, the right choice: its number from 0, or its text. The result of a
    text is an object with id, n_scored, n_bytes, total, loss, bits_per_byte, perplexity, and with --per-token also
    tokens, logprobs, ranks. The result of choices has a list choices of such objects, ranking (their numbers, the most
    likely first, by total), ranking_per_character and ranking_per_byte. With an answer it has acc, acc_norm and
    acc_bytes: 1 if the answer is first in that ranking, otherwise 0. Each result has request, a hash of what was
    asked. OUT is resumed, and shared by mlx.launch, as with `mlxgen batch`.

    --table, --csv and --json sum up the lines of such a file instead: acc, acc_norm and acc_bytes are then the shares
    of its questions that are answered right, as lm-evaluation-harness defines them.
    """
    sources = sources or ("-",)
    if sum(given[name] for name in ("as_json", "as_csv", "table")) > 1:
        raise click.UsageError("--json, --csv and --table are different outputs; give one of them")
    if sources.count("-") > 1:
        raise click.UsageError('standard input ("-") can be read only once')
    jsonl = len(sources) == 1 and _is_jsonl(sources[0], None, given)
    if len(sources) > 1 or given["as_csv"] or given["table"] or (jsonl and given["as_json"]):
        _sum_up(sources, given)
    elif jsonl:
        _score_lines(sources[0], given)
    else:
        content = read_content(sources[0])
        if not _is_jsonl(sources[0], content, given):
            _score_text(text_of(content, sources[0]), given)
        elif given["as_json"]:
            _sum_up(sources, given, content)
        else:
            _score_lines(sources[0], given, content)


def _is_jsonl(source: str, content: bytes | None, given: dict[str, Any]) -> bool:
    named = given["jsonl"] or Path(source).suffix.lower() in JSONL_SUFFIXES
    return bool(named or (content is not None and JSON_LINE.match(content)))


def _score_lines(source: str, given: dict[str, Any], content: bytes | None = None) -> None:
    from mlxgen.cli.jsonl.score_lines import score_file

    score_file(source, given, content)


def _sum_up(sources: tuple[str, ...], given: dict[str, Any], content: bytes | None = None) -> None:
    """content: what was already read of the first source."""
    from mlxgen.cli.score_table import score_files

    if given["output"] != "-" or given["overwrite"]:
        raise click.UsageError("-o and --overwrite are for the results of one JSONL file, line by line; leave them out")
    if given["per_token"]:
        raise click.UsageError("--per-token is for one text, or for one JSONL file line by line; leave it out")
    contents = [read_content(source) if at or content is None else content for at, source in enumerate(sources)]
    files = [(source, text, _is_jsonl(source, text, given)) for source, text in zip(sources, contents, strict=True)]
    score_files(files, given)


def _score_text(text: str, given: dict[str, Any]) -> None:
    import mlxgen
    from mlxgen.cli.jsonl.score_lines import SCORE_OPTIONS, score_entries

    if not text:
        raise click.UsageError("there is nothing to score: the text is empty")
    if given["output"] != "-" or given["overwrite"]:
        raise click.UsageError("-o and --overwrite are for many texts; add --jsonl, or leave them out")
    if given["delimiter"]:
        raise click.UsageError("--delimiter is for questions with choices; leave it out")
    model = open_model(given)
    bar = progress_bar("Scoring", quiet=given["quiet"], least=LONG_TEXT)
    found = mlxgen.score(model, text, **{name: given[name] for name in SCORE_OPTIONS}, progress=bar)
    if given["as_json"]:
        write_json({"model": model.label, "text": found.text, **score_entries(found, per_token=True)})
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
