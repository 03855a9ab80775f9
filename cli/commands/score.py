"""`mlxgen score`: how likely is a text."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlxgen.cli.options import model_options, open_model
from mlxgen.cli.output import CLEARED, on_terminal, write, write_json

if TYPE_CHECKING:
    from mlxgen.cli.jsonl.reader import Line
    from mlxgen.cli.jsonl.runner import Outcome, Work
    from mlxgen.generation.context import Progress
    from mlxgen.model import Model
    from mlxgen.scoring import Score

# A token is coloured by its probability: at least so much, this colour.
COLOURS = ((0.5, "green"), (0.1, "cyan"), (0.01, "yellow"), (0.0, "red"))
LINE_KEYS = ("text", "context", "choices", "id", "metadata")
RESULTS = (frozenset({"total"}), frozenset({"choices"}))  # either shows that an object is a result of this command
LONG_TEXT = 2_000  # tokens from which a progress bar is worth showing


@click.command(short_help="How likely is a text.")
@click.argument("source", metavar="[FILE]", default="-")
@model_options
@click.option("--context", default="", metavar="TEXT", help="What comes before the text; read, but not scored.")
@click.option(
    "--stride",
    type=click.IntRange(min=1),
    metavar="N",
    help="How far a window is from the next, for texts longer than the model's table.  [default: half the table]",
)
@click.option("--bos/--no-bos", default=True, help="Whether the first token follows the model's start token.")
@click.option("--per-token", is_flag=True, help="Each token with its log-probability and rank.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.option("--jsonl", is_flag=True, help="FILE holds many texts, a JSON line each; as for a name in .jsonl.")
@click.option("-o", "--output", default="-", metavar="OUT", help="Where the results of many texts go.")
@click.option("--overwrite", is_flag=True, help="Start anew instead of going on with what OUT holds.")
@click.option("-q", "--quiet", is_flag=True, help="Nothing on standard error but errors.")
def score(source: str, **given: Any) -> None:
    """Score the text of FILE, or of standard input (all but its last line break): log-likelihood (nats), cross-entropy
    (nats per token), bits per byte, perplexity.

    --json prints an object: model, text, tokens (ids), logprobs (natural logs), ranks (1 is the model's first choice),
    n_scored, n_bytes, total, loss, bits_per_byte, perplexity. A token that nothing comes before has null.

    Many texts: a line of FILE is a JSON string, or an object with text, and any of context, id, metadata. With choices
    (a list of texts) instead of text, each is scored after the context. A line gives an object: id, n_scored, n_bytes,
    total, loss, bits_per_byte, perplexity, with --per-token tokens, logprobs, ranks; for choices, a list choices of
    such objects, ranking (their numbers from 0, the most likely first, by total) and ranking_per_byte; and request, a
    name for what was asked. OUT is resumed, and divided by mlx.launch, as that of `mlxgen batch`.
    """
    many = given["jsonl"] or Path(source).suffix.lower() in (".jsonl", ".ndjson")
    if many:
        _score_lines(source, given)
        return
    if given["output"] != "-" or given["overwrite"]:
        raise click.UsageError("-o and --overwrite are for many texts (--jsonl); one text's result is printed")
    text = _read(source)

    import mlxgen

    model = open_model(given)
    found = mlxgen.score(model, text, **_options(given), progress=_bar(given["quiet"]))
    if given["as_json"]:
        write_json({"model": model.name, "text": found.text, **_entries(found, per_token=True)})
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


def _read(source: str) -> str:
    from mlxgen.cli.prompt import read_prompt

    if source == "-":
        return read_prompt("-")
    try:
        return Path(source).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"{source} is not UTF-8 text (byte {error.start}); convert it with iconv -t UTF-8"
        ) from None


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in ("context", "stride", "bos")}


def _entries(found: Score, *, per_token: bool) -> dict[str, Any]:
    """What is told of a score; numbers that are infinite, which JSON cannot say, as null."""
    import math

    tokens = {"tokens": found.tokens, "logprobs": found.logprobs, "ranks": found.ranks} if per_token else {}
    return {
        **tokens,
        "n_scored": found.n_scored,
        "n_bytes": found.n_bytes,
        "total": found.total,
        "loss": found.loss,
        "bits_per_byte": found.bits_per_byte if math.isfinite(found.bits_per_byte) else None,
        "perplexity": found.perplexity if math.isfinite(found.perplexity) else None,
    }


def _write_tokens(model: Model, found: Score) -> None:
    """A line a token: log-probability, rank, the token; coloured by its probability on a terminal."""
    import math

    coloured = sys.stdout is not None and sys.stdout.isatty()
    for token, logprob, rank in zip(found.tokens, found.logprobs, found.ranks, strict=True):
        if logprob is None:
            line = f"{'-':>10} {'-':>6}  {model.tokenizer.decode([token])!r}"
        else:
            line = f"{logprob:10.4f} {rank:>6}  {model.tokenizer.decode([token])!r}"
            if coloured:
                line = click.style(line, fg=next(colour for least, colour in COLOURS if math.exp(logprob) >= least))
        write(line + "\n")


def _bar(quiet: bool) -> Progress | None:
    """A progress bar for a long text, on a terminal."""
    if quiet or not on_terminal():
        return None
    bars: list[Any] = []

    def show(done: int, total: int) -> None:
        if total < LONG_TEXT:
            return
        if not bars:
            bars.append(click.progressbar(length=total, label="Scoring", file=sys.stderr))
        bars[0].update(done - bars[0].pos)
        if done == total:
            click.echo(CLEARED, nl=False, err=True)

    return show


def _score_lines(source: str, given: Mapping[str, Any]) -> None:
    from mlxgen.cli.jsonl.runner import process

    def prepare() -> Work:

        model = open_model(given)
        return lambda lines, _ordered: _outcomes(model, lines, given)

    process(
        source,
        given["output"],
        prepare,
        form="jsonl",
        text_key="text",
        overwrite=given["overwrite"],
        quiet=given["quiet"],
        kinds=RESULTS,
        options={name: given[name] for name in ("context", "stride", "bos", "per_token", "model", "revision")},
    )


def _outcomes(model: Model, lines: Iterable[Line], given: Mapping[str, Any]) -> Iterator[Outcome]:
    from mlxgen.cli.jsonl.runner import Outcome
    from mlxgen.errors import MlxgenError

    for number, line in enumerate(lines, start=1):
        if line.done:
            continue
        try:
            entries, n_tokens = _score_line(model, line, given)
        except MlxgenError as error:
            yield Outcome(line, {}, error, finished=number)
        else:
            yield Outcome(line, entries, tokens=n_tokens, finished=number)


def _score_line(model: Model, line: Line, given: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """A line's results, and how many tokens were scored."""
    import mlxgen
    from mlxgen.errors import OptionError

    if line.error:
        raise line.error
    entries = line.entries
    if unknown := sorted(set(entries) - set(LINE_KEYS)):
        raise OptionError(f"unknown key {unknown[0]!r}; a line has {', '.join(LINE_KEYS)} (own data under metadata)")
    if ("text" in entries) == ("choices" in entries):
        raise OptionError("a line needs either text or choices")
    texts = entries["choices"] if "choices" in entries else [entries["text"]]
    options = {**_options(given), "context": entries.get("context", given["context"])}
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str | list) for text in texts):
        raise OptionError("text must be text or token ids, choices a list of them")
    if not isinstance(options["context"], str | list):
        raise OptionError("context must be text or token ids")
    scores = [mlxgen.score(model, text, **options) for text in texts]
    results = [_entries(found, per_token=given["per_token"]) for found in scores]
    answer: dict[str, Any] = results[0] if "text" in entries else {"choices": results, **_rankings(scores)}
    if "metadata" in entries:
        answer["metadata"] = entries["metadata"]
    return answer, sum(found.n_scored for found in scores)


def _rankings(scores: list[Score]) -> dict[str, list[int]]:
    """The choices from the most to the least likely: as they are, and for each byte, which is fair to long ones."""
    order = range(len(scores))
    return {
        "ranking": sorted(order, key=lambda at: -scores[at].total),
        "ranking_per_byte": sorted(order, key=lambda at: scores[at].bits_per_byte),
    }
