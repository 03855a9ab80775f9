"""`mlxgen chat`: a conversation that stays open."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlxgen.cli.options import (
    draft_model,
    generation,
    generation_options,
    guess_options,
    model_options,
    open_model,
    output_options,
)
from mlxgen.cli.output import chatty, say
from mlxgen.errors import MlxgenError

if TYPE_CHECKING:
    from mlxgen.chat.conversation import Conversation
    from mlxgen.cli.chat.answerer import Answerer
    from mlxgen.cli.chat.slash_commands import Commands

ANSWER_TOKENS = 128  # a turn of a conversation is shorter than a text


@click.command(
    short_help="A conversation that stays open.",
    context_settings={"default_map": {"overflow": "slide", "max_tokens": ANSWER_TOKENS}},
)
@model_options
@generation_options
@guess_options
@click.option(
    "--template",
    type=click.Choice(["auto", "model", "dialogpt", "plain", "story"]),
    default="auto",
    show_default=True,
    help="How turns are written down for the model: its own chat template, DialoGPT's, named speakers, or one story.",
)
@click.option("--system", default="", metavar="TEXT", help="A text that stands before the conversation.")
@click.option("--load", "saved", metavar="FILE", help="Go on with a conversation that /save wrote.")
@click.option("--history", metavar="FILE", help="Where typed lines are kept between runs.  [default: ~/.local/state]")
@output_options
@click.pass_context
def chat(ctx: click.Context, /, **given: Any) -> None:
    """Talk with a model, or write a story with it.

    On a terminal: Enter sends, Alt-Enter begins a new line, Ctrl-C stops an answer and keeps what was written, Ctrl-D
    leaves, /help lists the commands. Otherwise each line of standard input is a turn (or a /command); one that is
    refused does not end the run, and the exit status is 1.

    --json prints one object for each answer, with these keys: turn, user, text, finish_reason (stop, length,
    context, interrupted), seed, attempt, tokens (ids), prompt_tokens, generated_tokens, computed_positions (put through
    the network for it and kept), context_length, cache_length, slides, prompt_tps, generation_tps (tokens per second),
    guesses and accepted (tokens guessed by --lookahead or --draft, and how many were right). A line that is refused
    gets line (its number), user and error.
    """
    import mlxgen
    from mlxgen.chat.conversation import Conversation, system_tokens
    from mlxgen.chat.templates import choose_template
    from mlxgen.cli.chat.answerer import Answerer
    from mlxgen.cli.chat.slash_commands import COMMANDS, SETTINGS, Commands
    from mlxgen.generation.answer import SESSION

    options: Any = generation(ctx, given)
    settings = {name: options.pop(name) for name in SESSION if name in options}
    seed = options.pop("seed", None)
    model = open_model(given)
    options["draft"] = draft_model(given, model)
    template = choose_template(model, given["template"])
    keep = settings.get("keep") or None
    if keep is None and (ring := settings.get("max_kv_size")):
        quarter = min(ring, model.config.n_positions) // 4
        settings["keep"] = min(quarter, system_tokens(model, template, given["system"]))
    session = mlxgen.Session(model, **settings)
    conversation = Conversation(session, template, system=given["system"], options=options, seed=seed, keep=keep)
    if given["saved"]:
        conversation.load(given["saved"])
    typed = sys.stdin is not None and sys.stdin.isatty()
    talk = chatty(given["stats"], given["quiet"])
    stats = bool(given["stats"]) and not given["quiet"]
    answerer = Answerer(as_json=given["as_json"], talk=talk, interactive=typed, quiet=given["quiet"], stats=stats)
    if not typed:
        if not _all_lines(conversation, answerer):
            ctx.exit(1)
        return
    from mlxgen.cli.chat.input_line import default_history, input_line

    history = Path(given["history"]).expanduser() if given["history"] else default_history()
    ask = input_line(COMMANDS, SETTINGS, history)
    answerer.note(_greeting(conversation))
    while True:
        try:
            _turn(conversation, answerer, Commands(conversation, answerer, ask), ask(""))
        except KeyboardInterrupt:  # at the input line: the line is dropped
            answerer.note("(Ctrl-D or /exit leaves)")
        except EOFError:
            return
        except MlxgenError as error:
            say(f"Error: {error}")


def _all_lines(conversation: Conversation, answerer: Answerer) -> bool:
    """A turn for each line of standard input; whether all went well. One that is refused does not end the others."""
    from mlxgen.cli.chat.slash_commands import Commands

    good = True
    with suppress(EOFError):
        for number, line in _lines():
            try:
                _turn(conversation, answerer, Commands(conversation, answerer), line)
            except MlxgenError as error:
                good = False
                answerer.refused(number, line, error)
    return good


def _turn(conversation: Conversation, answerer: Answerer, commands: Commands, line: str) -> None:
    """One input: a command, or words to answer. An empty line lets a story go on. Raises EOFError to leave."""
    from mlxgen.cli.chat.slash_commands import Leave

    if line.startswith("/") and not line.startswith("//"):
        try:
            commands.run(line)
        except Leave:
            raise EOFError from None
        return
    words = line.removeprefix("/") if line.startswith("//") else line
    if words.strip() or not conversation.template.speaks:
        answerer.answer(conversation, lambda: conversation.say(words))


def _lines() -> Iterator[tuple[int, str]]:
    """The lines of standard input that are not empty, with their numbers."""
    if sys.stdin is None:
        raise click.UsageError("no input: standard input is closed")
    for number, raw in enumerate(sys.stdin.buffer, 1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise click.UsageError(f"line {number} of standard input is not UTF-8 text; convert it") from None
        if line.strip():
            yield number, line


def _greeting(conversation: Conversation) -> str:
    how = {
        "story": "a story: write a line, and the model goes on; an empty line lets it write more",
        "plain": "named speakers",
        "dialogpt": "a dialogue",
        "model": "the model's own chat template",
    }[conversation.template.name]
    return f"{conversation.session.model.name}, {how}. /help lists the commands."
