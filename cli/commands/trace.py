"""`mlxgen trace`: why each token was chosen, on the terminal or as a page."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from mlxgen.cli.options import check_request, generation_options, model_options, open_model, quiet_option
from mlxgen.cli.output import chatty, say, size, write_json
from mlxgen.cli.progress import prefill_bar
from mlxgen.cli.prompt import read_prompt

if TYPE_CHECKING:
    from mlxgen.tracing.record import Trace

STEPS = 20


class Head(click.ParamType[tuple[int, int]]):
    """LAYER.HEAD: two numbers, each counted from 0."""

    name = "layer.head"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        found = re.fullmatch(r"(\d+)\.(\d+)", str(value))
        if not found:
            self.fail(f"expected LAYER.HEAD, such as 0.3, not {value!r}", param, ctx)
        return int(found[1]), int(found[2])


@click.command(context_settings={"default_map": {"max_tokens": STEPS}})
@click.argument("prompt", required=False)
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
    metavar="LAYER.HEAD",
    help="Also show what this head attends to from the newest position. Both count from 0. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with every number.")
@quiet_option
@click.pass_context
def trace(ctx: click.Context, /, prompt: str | None, **given: Any) -> None:
    """Generate from PROMPT like `mlxgen generate`, and show the five stages of each step: context, transformer,
    logits, sampling, append.

    With --html FILE, write the same as one page that needs no network. Step through it, and change the sampling rules
    to see their effect. Without PROMPT, or for "-", the prompt is read from standard input.

    --json prints an object with these keys: model, n_layer, n_head, n_embd, n_positions, vocab_size, options,
    candidates (recorded per step), seed, prompt, prompt_tokens, steps, tokens, text, finish_reason, greedy (the greedy
    answer; null if the rules are greedy). Tokens have id, piece, text. Each of steps has index, context_length,
    processed, cache, lens, attention, entropy, rule_entropy, candidates, rest, rules, key, random, chosen, text,
    total_logprob, seconds, finish_reason; mlxgen/tracing/record.py describes them and their own keys.
    """
    from mlxgen.tracing.tracer import trace_request

    text = read_prompt(prompt)
    request = check_request(ctx, given)
    if given["open_page"] and not given["html"]:
        raise click.UsageError("--open needs the page; add --html FILE", ctx)
    model = open_model(given)
    request = replace(request, progress=prefill_bar(given["quiet"]))
    record = trace_request(model, request, text, lens=given["lens"], attention=given["attention"])
    if given["html"]:
        written = _write_page(record, given["html"])
        if chatty(None, given["quiet"]):
            say(f"Wrote {given['html']} ({size(written)}). Seed: {record.seed}")
    if given["as_json"]:
        from dataclasses import asdict

        write_json(asdict(record))
    elif not given["html"]:
        from mlxgen.cli.trace_view import print_trace

        print_trace(record, candidates=given["candidates"], pause=given["pause"] and sys.stdin.isatty())
    if given["open_page"]:
        click.launch(given["html"])


def _write_page(record: Trace, file: str) -> int:
    """Write the page and return its size in bytes."""
    from mlxgen.atomic_file import replacing_file
    from mlxgen.tracing.page import page

    content = page(record).encode()
    with replacing_file(file) as part:
        part.write_bytes(content)
    return len(content)
