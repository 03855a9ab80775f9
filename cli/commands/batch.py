"""`mlxgen batch`: a file of prompts in, a file of answers out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from mlxgen.cli.options import check_request, generation_options, model_options, open_model, quiet_option
from mlxgen.cli.settings import LINE_SETTINGS

if TYPE_CHECKING:
    from mlxgen.cli.jsonl.input_file import InputLine
    from mlxgen.cli.jsonl.run import LineResult, ProcessLines
    from mlxgen.generation.batching import BatchGeneration, Prompt
    from mlxgen.generation.request import Options
    from mlxgen.model import Model

RESULT_KEYS = frozenset({"tokens", "sample"})  # besides the common ones
LINE_KEYS = ("prompt", "id", *LINE_SETTINGS, "num_samples", "metadata")


@click.command()
@click.argument("source", metavar="[IN]", default="-")
@click.option(
    "-o", "--output", default="-", metavar="OUT", help='File for the answers, or "-" for standard output.  [default: -]'
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["auto", "jsonl", "text"]),
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
    help="Generate N answers per prompt, each with its own seed derived from the prompt's.",
)
@click.option("--logprobs", is_flag=True, help="Add each token's log-probability (natural logarithm).")
@click.option("--overwrite", is_flag=True, help="Start over instead of resuming from what OUT holds.")
@model_options
@generation_options
@quiet_option
@click.pass_context
def batch(ctx: click.Context, /, source: str, **given: Any) -> None:
    """Answer every prompt in IN, a file or "-" for standard input, many at once.

    Each line of IN is a JSON string, or an object with prompt (text or token ids) and optionally id, max_tokens,
    temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, seed, stop, ignore_eos,
    num_samples, metadata. In a text file, each line is a prompt. The command's options apply to whatever a line
    leaves out.

    OUT gets one object per answer with these keys: id (the line's own, or its number), sample (from 0), prompt, text,
    tokens (ids), finish_reason (stop, length, context), seed (null if greedy), prompt_tokens, generated_tokens,
    logprobs (with --logprobs), metadata (if the line has it), request (a hash of what was asked). A line that fails
    gives an object with id, line (its number) and error. The other lines are still answered, and the exit status is 1.

    Each answer is written as soon as it is complete. Run the same command again to resume after an interruption; it
    also retries lines that failed or have changed. With --seed or --greedy the result is the same as without the
    interruption. At the end, OUT holds the answers in the order of IN. Standard output always gets them in that order.

    With mlx.launch, several machines share the work: each takes every N-th line, and the first one writes OUT.
    """
    from mlxgen.cli.jsonl.input_file import InputFile
    from mlxgen.cli.jsonl.run import run_lines

    # --logprobs is not a number of candidates here; a prompt without a seed of its own gets a fresh one
    options: Options = {**check_request(ctx, {**given, "logprobs": 0}).options, "seed": given["seed"]}
    asked = {name: value for name, value in options.items() if name in given}

    def prepare() -> ProcessLines:
        model = open_model(given)
        return lambda lines, ordered: answers(model, lines, ordered, options, given)

    run_lines(
        InputFile(source, given["form"], text_key="prompt"),
        given["output"],
        prepare,
        overwrite=given["overwrite"],
        quiet=given["quiet"],
        result_keys=[RESULT_KEYS],
        options={**asked, "model": given["model"], "revision": given["revision"], "with_logprobs": given["logprobs"]},
    )


def answers(
    model: Model, lines: Iterable[InputLine], ordered: bool, options: Options, given: Mapping[str, Any]
) -> Iterator[LineResult]:
    """The answers to the lines and their failures, in order or as they complete."""
    from mlxgen.cli.jsonl.run import LineResult
    from mlxgen.errors import MlxgenError
    from mlxgen.generation.batching import Failure, outcomes

    asked: list[InputLine] = []
    left: list[int] = []  # answers to come to each of them
    finished = 0

    def requests() -> Iterator[Prompt | MlxgenError]:
        nonlocal finished
        for line in lines:
            try:
                request = _prompt(line, given["num_samples"])
            except MlxgenError as error:
                asked.append(line)
                left.append(1)
                yield error
                continue
            if count := (request.num_samples or 1) - len(request.skip):
                asked.append(line)
                left.append(count)
                yield request
            else:
                finished += 1

    for found in outcomes(model, requests(), batch_size=given["batch_size"], ordered=ordered, **options):
        line = asked[found.index]
        left[found.index] -= left[found.index] if isinstance(found, Failure) and found.sample is None else 1
        finished += left[found.index] == 0
        if isinstance(found, Failure):
            yield LineResult(line, {}, found.error, finished=finished)
        else:
            greedy = line.entries.get("temperature", options["temperature"]) == 0
            yield LineResult(line, _entries(found, line, greedy, given["logprobs"]), None, len(found.tokens), finished)


def _prompt(line: InputLine, num_samples: int) -> Prompt:
    """The prompt of a line, with its options. Raises the line's own error, or OptionError for invalid entries."""
    from mlxgen.errors import OptionError
    from mlxgen.generation.batching import Prompt

    entries = line.checked_entries(LINE_KEYS)
    prompt = entries.get("prompt")
    if not isinstance(prompt, str | list):
        raise OptionError("prompt must be text or a list of token ids" if "prompt" in entries else "prompt is missing")
    count = entries.get("num_samples", num_samples)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise OptionError(f"num_samples must be a whole number of at least 1, not {count!r}")
    options: Options = {name: entries[name] for name in LINE_SETTINGS if name in entries}  # type: ignore[assignment]
    stop = options.get("stop", ())
    if not isinstance(stop, str) and not (
        isinstance(stop, list | tuple) and all(isinstance(text, str) for text in stop)
    ):
        raise OptionError(f"stop must be a text or a list of texts, not {stop!r}")
    if not isinstance(options.get("ignore_eos", False), bool):
        raise OptionError(f"ignore_eos must be true or false, not {options['ignore_eos']!r}")
    done = frozenset(sample for sample in line.done if sample < count)
    return Prompt(prompt, num_samples=count, skip=done, **options)


def _entries(answer: BatchGeneration, line: InputLine, greedy: bool, logprobs: bool) -> dict[str, Any]:
    entries: dict[str, Any] = {
        "sample": answer.sample,
        "prompt": answer.prompt,
        "text": answer.text,
        "tokens": answer.tokens,
        "finish_reason": answer.finish_reason,
        "seed": None if greedy else answer.seed,
        "prompt_tokens": len(answer.prompt_tokens),
        "generated_tokens": len(answer.tokens),
    }
    if logprobs:
        entries["logprobs"] = answer.logprobs
    if "metadata" in line.entries:
        entries["metadata"] = line.entries["metadata"]
    return entries
