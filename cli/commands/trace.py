"""`mlxgen trace`: why each token was chosen, on the terminal or as a page."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mlxgen.cli.completion import complete_model
from mlxgen.cli.options import (
    check_request,
    generation_options,
    ids_option,
    model_options,
    open_model,
    open_second_model,
    quiet_option,
)
from mlxgen.cli.output import chatty, say, size, write_json
from mlxgen.cli.progress import prefill_bar
from mlxgen.cli.prompt import read_prompt_or_ids
from mlxgen.cli.settings import MAX_SEED
from mlxgen.errors import MlxgenError

if TYPE_CHECKING:
    from mlxgen.generation.request import Request
    from mlxgen.tracing.record import Trace
    from mlxgen.tracing.tracer import Heads

STEPS = 20
ALL: Final = "all"


class Head(click.ParamType[tuple[int, int] | str]):
    """LAYER.HEAD: two numbers, each counted from 0; or "all"."""

    name = "layer.head"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int] | str:
        if value == ALL:
            return ALL
        found = re.fullmatch(r"(\d+)\.(\d+)", str(value))
        if not found:
            self.fail(f"expected LAYER.HEAD, such as 0.3, or all, not {value!r}", param, ctx)
        return int(found[1]), int(found[2])


@click.command(context_settings={"default_map": {"max_tokens": STEPS}})
@click.argument("prompt", required=False)
@ids_option
@model_options
@generation_options
@click.option(
    "--html", type=click.Path(dir_okay=False, writable=True), metavar="FILE", help="Write an HTML page instead."
)
@click.option("--open", "open_page", is_flag=True, help="Open the page in the browser.")
@click.option("--pause", is_flag=True, help="Wait for a key after each step.")
@click.option(
    "--candidates",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    metavar="N",
    help="Print the N most probable tokens of each step.",
)
@click.option(
    "--lens", is_flag=True, help="Also show what each layer would choose at the newest position (logit lens)."
)
@click.option(
    "--attention",
    type=Head(),
    multiple=True,
    metavar="LAYER.HEAD|all",
    help="Also show what this head attends to from the newest position. Both count from 0. Repeatable. all: every head,"
    " in the page as a grid.",
)
@click.option(
    "--compare",
    metavar="MODEL",
    shell_complete=complete_model,
    help="Also trace this model, without --adapter, on the same prompt, and show both runs side by side.",
)
@click.option(
    "--compare-seed",
    type=click.IntRange(0, MAX_SEED),
    metavar="N",
    help="Also trace the same prompt with this seed, and show both runs side by side.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with every number.")
@quiet_option
@click.pass_context
def trace(ctx: click.Context, /, prompt: str | None, **given: Any) -> None:
    """Generate from PROMPT like `mlxgen generate`, and show the five stages of each step: context, transformer,
    logits, sampling, append.

    With --html FILE, write the same as one page that needs no network. Step through it, and change the sampling rules
    to see their effect. Without PROMPT, or for "-", the prompt is read from standard input.

    With --compare or --compare-seed, two runs of the prompt are shown side by side, and the first token where they part
    is marked. Runs of models with different tokenizers are compared by their texts.

    --json prints an object with these keys: model, n_layer, n_head, n_embd, n_positions, vocab_size, options,
    candidates (recorded per step), seed, prompt, prompt_tokens, steps, tokens, text, finish_reason, greedy (the greedy
    answer; null if the rules are greedy). Tokens have id, piece, text. Each of steps has index, context_length,
    processed, cache, lens, attention, entropy, rule_entropy, candidates, rest, rules, key, random, chosen, text,
    total_logprob, seconds, finish_reason; mlxgen/tracing/record.py describes them and their own keys. For two runs, it
    is an object with first and second, which are such objects, and parting, where they part (by, first, second, text;
    or null), which mlxgen/tracing/parting.py describes.
    """
    from mlxgen.tracing.tracer import checked_heads, trace_request

    text = read_prompt_or_ids(prompt, given["ids"])
    request = check_request(ctx, given)
    if given["open_page"] and not given["html"]:
        raise click.UsageError("--open needs the page; add --html FILE", ctx)
    if given["html"] and not (folder := Path(given["html"]).parent).is_dir():
        raise MlxgenError(f"{given['html']}: there is no folder {folder}")
    second = _second_request(ctx, request, given)
    heads: Heads = ALL if ALL in given["attention"] else given["attention"]
    runs = [(open_model(given), request)]
    if second is not None:
        other = given["compare"]
        runs.append((open_second_model(given, other) if other else runs[0][0], second))
    for model, _ in runs:
        checked_heads(model, heads)
    records = [
        trace_request(
            model, replace(asked, progress=prefill_bar(given["quiet"])), text, lens=given["lens"], attention=heads
        )
        for model, asked in runs
    ]
    if given["html"]:
        written = _write_page(records, given["html"])
        if chatty(None, given["quiet"]):
            seeds = " and ".join(dict.fromkeys(str(record.seed) for record in records))
            say(f"Wrote {given['html']} ({size(written)}). Seed: {seeds}")
    if given["as_json"]:
        write_json(_entries(records))
    elif not given["html"]:
        _print(records, given["candidates"], pause=given["pause"] and sys.stdin.isatty())
    if given["open_page"]:
        click.launch(given["html"])


def _second_request(ctx: click.Context, request: Request, given: dict[str, Any]) -> Request | None:
    """The request of the second run, None without one. Raises UsageError."""
    seed = given["compare_seed"]
    if given["compare"] is None and seed is None:
        return None
    if given["pause"]:
        raise click.UsageError("--pause goes through the steps of one run; leave it out, or the comparison", ctx)
    if given["compare"] is None and request.sampling.greedy:
        raise click.UsageError("greedy text is the same with every seed; leave out --compare-seed, or --greedy", ctx)
    if (given["lens"] or given["attention"]) and not (given["html"] or given["as_json"]):
        raise click.UsageError("--lens and --attention of two runs are in the page and in JSON; add --html FILE", ctx)
    return request if seed is None else request.changed(seed=seed)


def _entries(records: Sequence[Trace]) -> dict[str, Any]:
    from dataclasses import asdict

    from mlxgen.tracing.parting import parting

    if len(records) == 1:
        return asdict(records[0])
    first, second = records
    place = parting(first, second)
    return {"first": asdict(first), "second": asdict(second), "parting": None if place is None else asdict(place)}


def _print(records: Sequence[Trace], candidates: int, *, pause: bool) -> None:
    from mlxgen.cli.compare_view import print_comparison
    from mlxgen.cli.trace_view import print_trace

    if len(records) == 1:
        print_trace(records[0], candidates=candidates, pause=pause)
    else:
        print_comparison(records[0], records[1], candidates=candidates)


def _write_page(records: Sequence[Trace], file: str) -> int:
    """Write the page and return its size in bytes."""
    from mlxgen.atomic_file import replacing_file
    from mlxgen.tracing.page import page

    content = page(*records).encode()
    with replacing_file(file) as part:
        part.write_bytes(content)
    return len(content)
