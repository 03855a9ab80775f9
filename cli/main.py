"""The command `mlxgen`: its subcommands, imported when they are asked for, and how failures are told."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from mlxgen import __version__
from mlxgen.errors import MlxgenError, OptionError

# name -> module and command in it, and its line in --help, which thus imports none of them.
COMMANDS = {
    "generate": ("mlxgen.cli.commands.generate:generate", "Continue a prompt."),
    "chat": ("mlxgen.cli.commands.chat:chat", "A conversation that stays open."),
    "trace": ("mlxgen.cli.commands.trace:trace", "See why each token was chosen."),
    "convert": ("mlxgen.cli.commands.convert:convert", "Make an MLX folder of a GPT-2 checkpoint."),
    "batch": ("mlxgen.cli.commands.batch:batch", "Answer many prompts at once."),
    "score": ("mlxgen.cli.commands.score:score", "How likely is a text."),
    "info": ("mlxgen.cli.commands.info:info", "Layers, parameters, memory, tokenizer of a model."),
    "bench": ("mlxgen.cli.commands.bench:bench", "Tokens per second, memory, beside a peer's."),
    "doctor": ("mlxgen.cli.commands.doctor:doctor", "Device, BLAS, versions, hub, and what is slow and why."),
    "models": ("mlxgen.cli.commands.models:models", "The models on this machine, and the known names."),
}

INTERRUPTED = 130  # 128 + SIGINT, as shells count


class Program(click.Group):
    """A click group with lazy subcommands, whose failures are one line: `Error: …`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        for option in command.params:
            own = f"MLXGEN_{cmd_name}_".upper()
            if option.name == "as_json":
                option.envvar = own + "JSON"
            elif option.envvar == "MLXGEN_MODEL":  # the command's own variable goes before the one for all
                option.envvar = [own + "MODEL", "MLXGEN_MODEL"]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with failures_told():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with failures_told():
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
            return result


class Failure(click.ClickException):
    """A failure told in one line."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class WrongUse(Failure):
    exit_code = 2


@contextmanager
def failures_told() -> Iterator[None]:
    """Turn what went wrong into a line and an exit status: 2 wrong use, 1 a failure, 130 Ctrl-C, 0 a closed pipe."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except KeyboardInterrupt:
        if sys.stderr is not None and sys.stderr.isatty():
            click.echo("\033[?25h", err=True)  # after ^C in the middle of a line; a bar may have hidden the cursor
        raise click.exceptions.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        _drop_output()
        raise click.exceptions.Exit(0) from None
    except Exception as error:
        if os.environ.get("MLXGEN_DEBUG", "") not in ("", "0"):
            import traceback

            traceback.print_exc()
        raise _failure(error) from None


def _failure(error: Exception) -> Failure:
    if isinstance(error, MlxgenError):
        return (WrongUse if isinstance(error, OptionError) else Failure)(str(error))
    if isinstance(error, OSError) and error.strerror:
        if sys.stdout is not None and error.filename is None:
            _drop_output()  # a full disk behind standard output would fail again at exit
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Failure(f"{what} (MLXGEN_DEBUG=1 shows where)")


def _drop_output() -> None:
    """Send what is still buffered for a closed pipe nowhere, so that the interpreter ends in silence."""
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

    Every option can come from the environment: MLXGEN_GENERATE_TEMPERATURE=0.5 sets --temperature of
    `mlxgen generate`, and MLXGEN_MODEL the model of every command.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets "?" for it, not an error.
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
