"""`mlxgen generate`: a prompt in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from mlxgen.cli.options import (
    beam_options,
    check_beams,
    check_request,
    generation_options,
    guess_options,
    ids_option,
    model_options,
    open_draft,
    open_model,
    output_options,
)
from mlxgen.cli.output import chatty, count, say, say_statistics, size, stdout_is_terminal, write, write_json
from mlxgen.cli.progress import prefill_bar, progress_bar
from mlxgen.cli.prompt import read_prompt_or_ids

if TYPE_CHECKING:
    from mlxgen.generation.answer import Answer
    from mlxgen.generation.beam_options import BeamOptions
    from mlxgen.generation.request import Request
    from mlxgen.generation.results import Generation
    from mlxgen.generation.searching import BeamGeneration
    from mlxgen.model import Model

FULL_HINT = "Hint: the prompt fills all {:,} positions of the model; use --overflow slide to continue."
END_HINT = "Hint: the answer ends where the model's {:,} positions are full; --overflow slide continues past them."
BEAM_HINT = "Hint: the answer ends where the model's {:,} positions are full; --beams cannot go on past them."
EMPTY_HINT = "Hint: the prompt is empty, so the text begins from the model's start token."
LONG_SEARCH = 32  # tokens from which a bar is worth showing
SPACE_HINT = "Hint: the prompt ends with a space. GPT-2's words begin with theirs, so text continues better without it."


@click.command()
@click.argument("prompt", required=False)
@ids_option
@model_options
@generation_options
@guess_options
@beam_options
@click.option(
    "--num-samples",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Generate N answers. The first answer uses --seed; the others' seeds are derived from it. With --beams, the"
    " N best.",
)
@click.option(
    "--echo/--no-echo", default=None, help="Print the prompt before the answer.  [default: only on a terminal]"
)
@click.option(
    "--logprobs",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Report the N most probable tokens of each step on standard error, or with --json in the output.",
)
@output_options
@click.pass_context
def generate(ctx: click.Context, /, prompt: str | None, **given: Any) -> None:
    """Continue PROMPT. Without it, or for "-", the prompt is read from standard input.

    The answer is written to standard output as it is generated, and ends with a line break. An empty line separates
    samples.

    --json prints one object per sample with these keys: model, prompt (text, or the ids of --ids), text (without the
    prompt), tokens (ids, including those of a stop text, which text leaves out), logprobs (natural logarithms, one per
    token), candidates (with --logprobs; per token a list of objects with token, text, probability, rule_probability,
    kept), finish_reason (stop, length, context), sample (from 0), seed (null if greedy), prompt_tokens,
    generated_tokens, prompt_tps and generation_tps (tokens per second), peak_memory (bytes), guesses and accepted
    (tokens guessed by --lookahead or --draft, and how many of them were right).

    With --beams, the texts with the highest scores are printed, best first. --json then also has beams, logprob (of the
    whole text, under the model) and score (what the texts are ranked by), seed is null, and generation_tps is in steps
    of all beams.

    --lookahead changes the speed but not the text, and so does --draft for greedy text: in float32, unless two tokens
    are equally probable to about seven digits. For sampled text, --draft keeps the distribution, but a seed gives a
    different text than without it.
    """
    from mlxgen.generation.answer import answer
    from mlxgen.generation.request import sample_seeds

    text = read_prompt_or_ids(prompt, given["ids"])
    search = check_beams(ctx, given)
    request = search[0] if search else check_request(ctx, given)
    if given["as_json"] and given["echo"]:
        raise click.UsageError("--json has the prompt as a key; leave out --echo")
    if given["logprobs"] and given["quiet"] and not given["as_json"]:
        raise click.UsageError(
            "--logprobs writes to standard error and --quiet writes nothing there; leave out one of them, or add --json"
        )
    seeds = sample_seeds(request.seed, given["num_samples"])
    quiet, as_json = given["quiet"], given["as_json"]
    talk = chatty(given["stats"], quiet)
    if talk and isinstance(text, str) and (not text or text.endswith(" ")):
        say(SPACE_HINT if text else EMPTY_HINT)
    model = open_model(given)
    request = (request if search else open_draft(given, request, model)).with_prompt(model, text)
    echo = given["echo"] if given["echo"] is not None else stdout_is_terminal()
    shown = "" if not echo else text if isinstance(text, str) else model.tokenizer.decode(text)
    request = replace(request, progress=prefill_bar(quiet))
    if search:
        _search(model, request, search[1], shown, given)
        return
    hinted = False
    for sample, seed in enumerate(seeds):
        steps = answer(model, replace(request, seed=seed))
        if as_json:
            record = steps.finish()
            write_json(_entries(model, record, sample, greedy=request.options["temperature"] == 0))
        else:
            write("\n" if sample else "")
            record = _stream(steps, shown)
            if request.logprobs and not quiet:
                _say_candidates(model, record)
        if record.finish_reason == "context" and talk and not hinted:
            say((END_HINT if record.tokens else FULL_HINT).format(model.config.n_positions))
            hinted = True
        if talk:
            say_statistics(record)


def _search(model: Model, request: Request, options: BeamOptions, echo: str, given: Mapping[str, Any]) -> None:
    """Print the best texts of a beam search. echo: what to print before each of them."""
    from mlxgen.generation.searching import find

    bar = progress_bar("Searching", quiet=given["quiet"], least=LONG_SEARCH)
    records = find(model, request, options, bar)
    if bar:
        bar.stop()
    for sample, record in enumerate(records):
        if given["as_json"]:
            entries = _entries(model, record, sample, greedy=True)
            write_json({**entries, "beams": options.beams, "logprob": record.logprob, "score": record.score})
        else:
            write(("\n" if sample else "") + echo + record.text + "\n")
    if chatty(given["stats"], given["quiet"]):
        if any(record.finish_reason == "context" for record in records):
            say(BEAM_HINT.format(model.config.n_positions))
        _say_search(records, options.beams)


def _say_search(records: Sequence[BeamGeneration], beams: int) -> None:
    first = records[0]
    say(f"Prompt: {count(len(first.prompt_tokens), 'token')}, {first.prompt_tps:.1f} tokens/s")
    speed = f"{count(first.steps, 'step')}, {first.generation_tps:.1f} steps/s"
    say(f"Search: {count(beams, 'beam')}, {speed}. Peak memory: {size(first.peak_memory)}")
    for number, record in enumerate(records, 1):
        numbers = f"score {record.score:.4f}, log-probability {record.logprob:.4f}"
        say(f"Answer {number}: {count(len(record.tokens), 'token')} ({record.finish_reason}), {numbers}")


def _stream(steps: Answer, prompt: str) -> Generation:
    """Print the prompt once it is processed, which may take a progress bar, then each piece of text as it comes."""
    unwritten = prompt
    for step in steps:
        if unwritten or step.text:
            write(unwritten + step.text)
            unwritten = ""
    write(unwritten + "\n")
    return steps.generation


def _entries(model: Model, record: Generation, sample: int, *, greedy: bool) -> dict[str, Any]:
    return {
        "model": model.label,
        "prompt": record.prompt,
        "text": record.text,
        "tokens": record.tokens,
        "logprobs": record.logprobs,
        "candidates": [
            [
                {
                    "token": candidate.token,
                    "text": candidate.text,
                    "probability": candidate.probability,
                    "rule_probability": candidate.rule_probability,
                    "kept": candidate.kept,
                }
                for candidate in candidates
            ]
            for candidates in record.candidates
        ],
        "finish_reason": record.finish_reason,
        "sample": sample,
        "seed": None if greedy else record.seed,
        "prompt_tokens": len(record.prompt_tokens),
        "generated_tokens": len(record.tokens),
        "prompt_tps": record.prompt_tps,
        "generation_tps": record.generation_tps,
        "peak_memory": record.peak_memory,
        "guesses": record.guesses,
        "accepted": record.accepted,
    }


def _say_candidates(model: Model, record: Generation) -> None:
    """Print a line per step: the token, its log-probability, and the candidates, excluded ones in brackets."""
    for token, logprob, candidates in zip(record.tokens, record.logprobs, record.candidates, strict=True):
        shown = (
            f"{candidate.text!r} {candidate.probability:.3f}"
            if candidate.kept
            else f"({candidate.text!r} {candidate.probability:.3f})"
            for candidate in candidates
        )
        say(f"{model.tokenizer.decode([token])!r} {logprob:.3f}: {', '.join(shown)}")
