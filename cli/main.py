"""The command `mlxgen`: its subcommands, imported when they are called, and errors as one line."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from typing import Any

import click

from mlxgen import __version__
from mlxgen.cli.output import for_stderr, in_words, print_traceback
from mlxgen.errors import OptionError

# Each is a function in the module of its name in mlxgen.cli.commands. The list of them in --help imports none.
COMMANDS = {
    "generate": "Continue a prompt.",
    "chat": "Talk to a model, or write a story with it.",
    "trace": "See why each token was chosen.",
    "convert": "Convert a GPT-2 checkpoint to a model folder, or to GGUF.",
    "batch": "Answer many prompts at once.",
    "score": "Score how likely a text is.",
    "eval": "Run benchmarks with lm-evaluation-harness.",
    "tokenize": "Show the tokens of a text and their ids.",
    "info": "Show a model's layers, parameters, memory and tokenizer.",
    "bench": "Measure tokens per second and memory, alone or against other libraries.",
    "doctor": "Check the device, BLAS, versions and hub, and what is slow.",
    "models": "List the models on this machine and the known names.",
    "completion": "Print the script that completes commands and models in the shell.",
}

INTERRUPTED = 130  # 128 + SIGINT, as in shells


class Program(click.Group):
    """A click group that imports its subcommands lazily and reports every error as one line: `Error: …`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"mlxgen.cli.commands.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        command.short_help = COMMANDS[cmd_name]
        for param in command.params:
            own = f"MLXGEN_{cmd_name}_{_name_in_environment(param)}".upper()
            if param.envvar in ("MLXGEN_MODEL", [own, "MLXGEN_MODEL"]):  # the command's own comes before the common one
                param.envvar = [own, "MLXGEN_MODEL"]
            elif isinstance(param, click.Option):
                param.envvar = own
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command, as click finds it; the error for an unknown one names a similar one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if near := get_close_matches(args[0], COMMANDS, n=1):
                error.message = f"{error.message.removesuffix('.')} (did you mean {near[0]}?)"  # type: ignore[misc]
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with errors_as_one_line():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with errors_as_one_line():
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
            return result


def _name_in_environment(param: click.Parameter) -> str:
    """What the parameter is called there: like its flag, not like the variable that holds it in Python."""
    flag = next((opt for opt in param.opts if opt.startswith("--")), param.opts[0])
    return flag.lstrip("-").replace("-", "_")


class OneLineError(click.ClickException):
    """An error as click reports it, on one line. The exit status is 1."""

    def __init__(self, message: str) -> None:
        super().__init__(_as_shown(message))


class WrongUse(OneLineError):
    exit_code = 2


@contextmanager
def errors_as_one_line() -> Iterator[None]:
    """Turn an exception into one line and an exit status: 2 for wrong use, 130 for Ctrl-C, 1 for any other error.

    A closed pipe ends the program quietly with 0. With MLXGEN_DEBUG=1 the traceback is printed too.
    """
    try:
        yield
    except click.ClickException as error:  # wrong use
        error.message = _as_shown(error.message + _hint(error))  # type: ignore[misc]  # final for subclasses
        raise
    except (click.exceptions.Exit, click.Abort):
        raise
    except KeyboardInterrupt:
        if sys.stderr is not None and sys.stderr.isatty():
            click.echo(err=True)  # ^C was shown in the middle of a line
        raise click.exceptions.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        _drop_output()
        raise click.exceptions.Exit(0) from None
    except Exception as error:
        print_traceback()
        raise _one_line(error) from None


def _one_line(error: Exception) -> OneLineError:
    if isinstance(error, OSError) and error.strerror and error.filename is None and sys.stdout is not None:
        _drop_output()  # a full disk behind standard output would fail again at exit
    return (WrongUse if isinstance(error, OptionError) else OneLineError)(in_words(error))


def _as_shown(message: str) -> str:
    """The message as it goes to standard error, after "Error: "."""
    start = "Error:"
    return for_stderr(f"{start} {message}").removeprefix(start).removeprefix(" ")


def _hint(error: click.ClickException) -> str:
    """A hint for a prompt, or another text, that click took for an option or for several arguments."""
    params = error.ctx.command.params if isinstance(error, click.UsageError) and error.ctx else []
    name = next((param.name for param in params if param.name in ("prompt", "text")), None)
    if name and isinstance(error, click.NoSuchOption) and not error.possibilities:
        return f' A {name} that begins with a dash goes after "--", or to standard input.'
    if name and error.message.startswith("Got unexpected extra argument"):
        return f". The {name} is one argument, so put it in quotes; the model goes after -m."
    return ""


def _drop_output() -> None:
    """Discard what is buffered for a stream that cannot be written, so that the interpreter can exit quietly."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@click.group(
    cls=Program,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "MLXGEN",
        "max_content_width": 100,
    },
)
@click.version_option(__version__, "-V", "--version", message="mlxgen %(version)s", allow_from_autoenv=False)
def main() -> None:
    """Generate text with GPT-2 models on MLX.

    Every option can also be set in the environment: MLXGEN_GENERATE_TEMPERATURE=0.5 sets --temperature of
    `mlxgen generate`, and MLXGEN_MODEL sets the model of every command.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows "?" instead of failing.
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
