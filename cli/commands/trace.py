"""`mlxgen trace`: why each token was chosen, on the terminal or as a page."""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from mlxgen.cli.options import generation, generation_options, model_options, open_model
from mlxgen.cli.output import chatty, prefill_bar, say, size, write_json
from mlxgen.cli.prompt import read_prompt

if TYPE_CHECKING:
    from mlxgen.tracing.record import Trace

STEPS = 20


class Head(click.ParamType[tuple[int, int]]):
    """LAYER.HEAD, both counted from 0."""

    name = "layer.head"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        found = re.fullmatch(r"(\d+)\.(\d+)", str(value))
        if not found:
            self.fail(f"{value!r} is not a layer, a dot and a head, such as 0.3", param, ctx)
        return int(found[1]), int(found[2])


@click.command(short_help="See why each token was chosen.")
@click.argument("prompt", required=False)
@model_options
@partial(generation_options, max_tokens=STEPS)
@click.option("--html", type=click.Path(dir_okay=False, writable=True), metavar="FILE", help="Write a page instead.")
@click.option("--open", "open_page", is_flag=True, help="Show the page in the browser.")
@click.option("--pause", is_flag=True, help="Wait for a key after each step.")
@click.option(
    "--candidates",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    metavar="N",
    help="How many candidates to print for each step.",
)
@click.option("--lens", is_flag=True, help="Also what each layer would choose at the newest position.")
@click.option(
    "--attention",
    type=Head(),
    multiple=True,
    metavar="LAYER.HEAD",
    help="Also what this head looks at from the newest position; both count from 0. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object with every number.")
@click.option("-q", "--quiet", is_flag=True, help="Nothing on standard error but errors.")
@click.pass_context
def trace(ctx: click.Context, /, prompt: str | None, **given: Any) -> None:
    """Generate from PROMPT as `mlxgen generate` does, and show each step in its five stages: the context, the
    transformer and its cache, the logits, how the rules make a choice of them, and what is appended.

    With --html FILE the same is written as one page that needs no network: step through it, and change the rules to
    see what they do. PROMPT is the argument or else standard input ("-" for standard input).
    """
    import mlxgen

    text = read_prompt(prompt)
    options = generation(ctx, given)
    if given["open_page"] and not given["html"]:
        raise click.UsageError("--open shows the page that --html FILE writes; give a FILE", ctx)
    model = open_model(given)
    options["progress"] = prefill_bar(given["quiet"])
    steps = options.pop("max_tokens")
    record = mlxgen.trace(model, text, steps, lens=given["lens"], attention=given["attention"], **options)
    if given["html"]:
        written = _write_page(record, given["html"])
        if chatty(None, given["quiet"]):
            say(f"Wrote {given['html']} ({size(written)}). Seed: {record.seed}")
    if given["as_json"]:
        from dataclasses import asdict

        write_json(asdict(record))
    elif not given["html"]:
        from mlxgen.cli.trace_view import show

        show(record, rows=given["candidates"], pause=given["pause"] and sys.stdin.isatty())
    if given["open_page"]:
        click.launch(given["html"])


def _write_page(record: Trace, file: str) -> int:
    """Write the page next to its place and rename it into it; returns its size in bytes."""
    import os
    import secrets
    from pathlib import Path

    from mlxgen.tracing.page import page

    content = page(record).encode()
    unfinished = Path(f"{file}.{secrets.token_hex(4)}.part")  # nobody's file
    try:
        with unfinished.open("xb") as out:
            out.write(content)
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)
    return len(content)
