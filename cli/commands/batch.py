"""`mlxgen batch`: a file of prompts in, a file of answers out."""

from __future__ import annotations

from typing import Any

import click

from mlxgen.cli.completion import complete_file
from mlxgen.cli.jsonl.input_file import FORMATS
from mlxgen.cli.options import check_request, file_options, generation_options, model_options, quiet_option
from mlxgen.cli.prompt import model_at


@click.command()
@click.argument("source", metavar="[IN]", default="-", shell_complete=complete_file)
@file_options
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="auto",
    show_default=True,
    help="Whether the lines of IN are JSON or plain text. auto decides by the file's name, or by its first line.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Generate up to N answers at once.  [default: as many as fit into memory, at most 32]",
)
@click.option(
    "--num-samples",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Generate N answers per prompt. The first uses the prompt's seed; the others' seeds are derived from it.",
)
@click.option("--logprobs", is_flag=True, help="Add each token's log-probability (natural logarithm).")
@model_options
@generation_options
@quiet_option
@click.pass_context
def batch(ctx: click.Context, /, source: str, **given: Any) -> None:
    """Answer every prompt in IN, a file or "-" for standard input, many at once.

    Each line of IN is a JSON string, or an object with prompt (text or token ids) and optionally id, max_tokens,
    temperature, top_k, top_p, min_p, typical_p, epsilon_cutoff, eta_cutoff, repetition_penalty, presence_penalty,
    frequency_penalty, no_repeat_ngram, bad_words (--ban), min_tokens, suppress_tokens, seed, stop, ignore_eos,
    num_samples, metadata. In a text file, each line is a prompt. The command's options apply to whatever a line
    leaves out.

    OUT gets one object per answer with these keys: id (the line's own, or its number), sample (from 0), prompt, text,
    tokens (ids, including those of a stop text, which text leaves out), finish_reason (stop, length, context), seed
    (null if greedy), prompt_tokens, generated_tokens, logprobs (with --logprobs), metadata (if the line has it),
    request (a hash of what was asked). A line that fails gives an object with id, line (its number) and error. The
    other lines are still answered, and the exit status is 1.

    Each answer is written as soon as it is complete. Run the same command again to resume after an interruption; it
    also retries lines that failed or have changed. With --seed or --greedy the result is the same as without the
    interruption, up to rounding. At the end, OUT holds the answers in the order of IN. Standard output always gets
    them in that order.

    With mlx.launch, several machines share the work: each takes every N-th line, and the first one writes OUT.
    """
    from mlxgen.cli.jsonl.batch_lines import answer_file

    if what := model_at(source):
        raise click.UsageError(what)
    # Here --logprobs is a flag, and not a number of candidates.
    answer_file(source, check_request(ctx, {**given, "logprobs": 0}), given)
