"""`mlxgen chat`: a conversation that stays open."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlxgen.chat.templates import NAMES, TEMPLATES
from mlxgen.cli.completion import complete_file
from mlxgen.cli.options import (
    check_request,
    generation_options,
    guess_options,
    model_options,
    open_draft,
    open_model,
    output_options,
)
from mlxgen.cli.output import chatty, in_words, print_traceback, say
from mlxgen.cli.prompt import Utf8Text
from mlxgen.cli.settings import CHAT_SETTINGS
from mlxgen.errors import MlxgenError, OptionError

if TYPE_CHECKING:
    from mlxgen.chat.conversation import Conversation
    from mlxgen.cli.chat.answerer import Answerer
    from mlxgen.cli.chat.slash_commands import Commands

ANSWER_TOKENS = 128  # a turn is shorter than a text


@click.command(context_settings={"default_map": {"overflow": "slide", "max_tokens": ANSWER_TOKENS}})
@model_options
@generation_options
@guess_options
@click.option(
    "--template",
    type=click.Choice(NAMES),
    default="auto",
    show_default=True,
    help="How turns are written for the model: its own chat template, DialoGPT's format, named speakers, or one story."
    " auto picks model if the model has a chat template, dialogpt for DialoGPT, otherwise story.",
)
@click.option("--system", type=Utf8Text(), default="", metavar="TEXT", help="Text placed before the conversation.")
@click.option(
    "--load", "saved", metavar="FILE", shell_complete=complete_file, help="Continue a conversation saved with /save."
)
@click.option(
    "--history",
    metavar="FILE",
    shell_complete=complete_file,
    help="Keep typed lines between runs in FILE.  [default: ~/.local/state/mlxgen/chat_history]",
)
@output_options
@click.pass_context
def chat(ctx: click.Context, /, **given: Any) -> None:
    """Talk to a model, or write a story with it.

    On a terminal, Enter sends, Alt-Enter starts a new line, Ctrl-C stops an answer and keeps what it has so far,
    Ctrl-D quits, and /help lists the commands. Otherwise each line of standard input is a turn or a /command. A line
    that is rejected does not end the run, but the exit status is then 1.

    --json prints one object per answer with these keys: turn, user, text, finish_reason (stop, length, context,
    interrupted), seed, attempt, tokens (ids), prompt_tokens, generated_tokens, computed_positions (processed by the
    network for this answer and kept), context_length, cache_length, slides, prompt_tps and generation_tps (tokens
    per second), guesses and accepted (tokens guessed by --lookahead or --draft, and how many of them were right).
    A rejected line gives an object with line (its number), user and error.
    """
    import mlxgen
    from mlxgen.chat.conversation import Conversation, system_tokens
    from mlxgen.chat.templates import choose_template
    from mlxgen.cli.chat.answerer import Answerer
    from mlxgen.cli.chat.slash_commands import COMMANDS, Commands, check_system

    request = check_request(ctx, given)
    model = open_model(given)
    request = open_draft(given, request, model)
    request.check_against(model)
    template = choose_template(model, given["template"])
    context, keep = request.context, given["keep"] or None
    if keep is None and context.max_kv_size:
        quarter = min(context.max_kv_size, model.config.n_positions) // 4
        context = replace(context, keep=min(quarter, system_tokens(model, template, given["system"])))
    session = mlxgen.Session(model, **asdict(context))
    conversation = Conversation(
        session, template, system=given["system"], request=request, seed=given["seed"], keep=keep
    )
    if given["system"]:
        try:
            check_system(conversation, given["system"])
        except MlxgenError as error:
            raise OptionError(f"--system: {error}") from None
    typed = sys.stdin is not None and sys.stdin.isatty()
    answerer = Answerer(
        as_json=given["as_json"],
        notes=chatty(given["stats"], given["quiet"]),
        stats=bool(given["stats"]) and not given["quiet"],
        interactive=typed,
        quiet=given["quiet"],
    )
    if given["saved"]:
        conversation.load(given["saved"])
        answerer.show_loaded(conversation)
    if not typed:
        if not _all_lines(conversation, answerer):
            ctx.exit(1)
        return
    from mlxgen.cli.chat.input_line import default_history, input_line

    history = Path(given["history"]).expanduser() if given["history"] else default_history()
    ask = input_line(COMMANDS, CHAT_SETTINGS, history)
    answerer.note(_greeting(conversation))
    commands = Commands(conversation, answerer, ask)
    while True:
        try:
            refused = _attempt(conversation, answerer, commands, ask(""))
            if refused:
                say(f"Error: {in_words(refused)}")
        except KeyboardInterrupt:  # at the input line: the line is dropped
            answerer.note("(Ctrl-D or /exit quits)")
        except EOFError:
            return


for _option in chat.params:
    if isinstance(_option, click.Option) and _option.name == "keep":
        _option.show_default = "automatic: the system text and the first turn"  # what 0 means here


def _all_lines(conversation: Conversation, answerer: Answerer) -> bool:
    """Take each line of standard input as a turn. A line that is rejected does not end the run, but returns False."""
    from mlxgen.cli.chat.slash_commands import Commands

    good = True
    commands = Commands(conversation, answerer)
    with suppress(EOFError):
        for number, line, wrong in _lines():
            refused = wrong or _attempt(conversation, answerer, commands, line)
            if refused:
                good = False
                answerer.report_error(number, line, refused)
    return good


def _attempt(conversation: Conversation, answerer: Answerer, commands: Commands, line: str) -> Exception | None:
    """Run one input like `_turn`. Whatever is wrong with it is returned, since no input may end the conversation.

    Raises EOFError to quit, and OSError if the output cannot be written.
    """
    try:
        _turn(conversation, answerer, commands, line)
    except EOFError:
        raise
    except MlxgenError as error:
        return error
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None:
            raise
        print_traceback()
        return error
    return None


def _turn(conversation: Conversation, answerer: Answerer, commands: Commands, line: str) -> None:
    """Run one input: a command, or text to answer. An empty line continues a story. Raises EOFError to quit."""
    from mlxgen.cli.chat.slash_commands import Quit

    if line.startswith("/") and not line.startswith("//"):
        try:
            commands.run(line)
        except Quit:
            raise EOFError from None
        return
    text = line.removeprefix("/") if line.startswith("//") else line
    if text.strip() or not conversation.template.speaks:
        answerer.answer(conversation, lambda: conversation.say(text))


def _lines() -> Iterator[tuple[int, str, Exception | None]]:
    """The non-empty lines of standard input with their numbers, and what is wrong with them."""
    if sys.stdin is None:
        raise click.UsageError("no input: standard input is closed")
    for number, raw in enumerate(sys.stdin.buffer, 1):
        wrong: Exception | None = None
        encoding = "utf-8-sig" if number == 1 else "utf-8"
        try:
            line = raw.decode(encoding)
        except UnicodeDecodeError as error:
            line = raw.decode(encoding, "replace")
            wrong = OptionError(f"not UTF-8 text (byte {error.start + 1}); convert it with iconv -t UTF-8")
        if line.strip():
            yield number, line.rstrip("\r\n"), wrong


def _greeting(conversation: Conversation) -> str:
    how = TEMPLATES[conversation.template.name]
    return f"{conversation.session.model.label}, {how}. /help lists the commands."
