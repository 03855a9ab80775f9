"""The options that several commands share, and what they mean as keyword arguments of mlxgen's functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from mlxgen.generation.answer import Options
    from mlxgen.model import Model

F = TypeVar("F", bound=Callable[..., Any])

MAX_SEED = 2**63 - 1
ESCAPES = {r"\n": "\n", r"\t": "\t", r"\r": "\r", r"\\": "\\"}


class OrOff(click.ParamType[Any]):
    """A number, or "off" for a rule that does not apply."""

    def __init__(self, number: click.ParamType[Any]) -> None:
        self.number = number
        self.name = f"{number.name} or off"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.lower() in ("off", "none"):
            return None
        return self.number.convert(value, param, ctx)


class TokenBias(click.ParamType[tuple[int, float]]):
    """TOKEN=BIAS, a token id and what is added to its logit."""

    name = "token=bias"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, float]:
        try:
            token, bias = str(value).split("=")
            return int(token), float(bias)
        except ValueError:
            self.fail(f"{value!r} is not a token id, an equals sign and a number, such as 50256=-5", param, ctx)


class StopText(click.types.StringParamType):
    """A stop text; from the environment, the whole value is one."""

    def split_envvar_value(self, rv: str) -> list[str]:
        return [rv]


def _stop_texts(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    if "" in values:
        raise click.BadParameter("a stop text must have at least one character", ctx, param)
    return tuple(re.sub(r"\\[ntr\\]", lambda found: ESCAPES[found[0]], value) for value in values)


def _apply(function: F, options: list[Callable[[F], F]]) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def model_options(function: F) -> F:
    return _apply(
        function,
        [
            click.option(
                "-m",
                "--model",
                default="fairy-tales",
                envvar="MLXGEN_MODEL",
                show_default=True,
                help="A folder, a hub id (owner/name), an alias such as gpt2, or the bundled fairy-tales.",
            ),
            click.option("--revision", help="Branch, tag or commit of a model on the hub."),
        ],
    )


def generation_options(function: F, max_tokens: int = 256) -> F:
    """How much to generate (by default `max_tokens`), by which rules, with which cache: see `generation`."""
    return _apply(
        function,
        [
            click.option(
                "-n",
                "--max-tokens",
                type=click.IntRange(min=1),
                default=max_tokens,
                show_default=True,
                help="Most tokens to generate.",
            ),
            click.option(
                "-t",
                "--temperature",
                type=float,
                default=0.8,
                show_default=True,
                help="Divides the logits; below 1 is safer, above 1 wilder, 0 is greedy.",
            ),
            click.option(
                "-k",
                "--top-k",
                type=OrOff(click.INT),
                default=40,
                show_default=True,
                metavar="N|off",
                help="Choose among the N most probable tokens.",
            ),
            click.option(
                "-p",
                "--top-p",
                type=OrOff(click.FLOAT),
                metavar="P|off",
                help="Choose among the smallest leading set whose probability reaches P.",
            ),
            click.option(
                "--min-p",
                type=OrOff(click.FLOAT),
                metavar="P|off",
                help="Drop tokens below P times the most probable one.",
            ),
            click.option("--greedy", is_flag=True, help="Always the most probable token; as --temperature 0."),
            click.option(
                "--repetition-penalty",
                type=float,
                metavar="X",
                help="Divide the logits of tokens already there by X (above 1 repeats less).",
            ),
            click.option(
                "--presence-penalty",
                type=float,
                metavar="X",
                help="Take X off the logits of tokens already there.",
            ),
            click.option(
                "--frequency-penalty",
                type=float,
                metavar="X",
                help="Take X off the logits of tokens already there, once for each time.",
            ),
            click.option(
                "--logit-bias",
                type=TokenBias(),
                multiple=True,
                metavar="TOKEN=BIAS",
                help="Add BIAS to a token's logit; -inf bans it. Repeatable.",
            ),
            click.option(
                "--seed",
                type=click.IntRange(0, MAX_SEED),
                help="Makes the choices repeatable; a fresh one is drawn without it.",
            ),
            click.option(
                "--stop",
                type=StopText(),
                multiple=True,
                callback=_stop_texts,
                metavar="TEXT",
                help=r"End before this text appears; \n, \t, \r and \\ are understood. Repeatable.",
            ),
            click.option("--ignore-eos", is_flag=True, help="Go on past the model's end token."),
            click.option(
                "--max-kv-size",
                type=click.IntRange(min=1),
                metavar="N",
                help="Keep at most N positions in the cache, the oldest going first.",
            ),
            click.option(
                "--keep",
                type=click.IntRange(min=0),
                default=0,
                show_default=True,
                metavar="N",
                help="Never drop the first N positions, when the cache rotates or slides.",
            ),
            click.option(
                "--overflow",
                type=click.Choice(["stop", "slide"]),
                default="stop",
                show_default=True,
                help="At the end of the model's position table: stop, or go on from the newest half.",
            ),
        ],
    )


def guess_options(function: F) -> F:
    """Ways to more than one token from a pass through the network: see `draft_model`."""
    return _apply(
        function,
        [
            click.option(
                "--lookahead",
                is_flag=True,
                help="Guess from the text so far and check several tokens at once: sooner where text repeats itself.",
            ),
            click.option(
                "--draft",
                metavar="MODEL",
                help="Let a smaller model of the same vocabulary guess, such as distilgpt2 for gpt2-xl.",
            ),
        ],
    )


def output_options(function: F) -> F:
    return _apply(
        function,
        [
            click.option("--json", "as_json", is_flag=True, help="One JSON object a line instead of text."),
            click.option(
                "--stats/--no-stats",
                default=None,
                help="Statistics and hints on standard error.  [default: only on a terminal]",
            ),
            click.option("-q", "--quiet", is_flag=True, help="Nothing on standard error but errors."),
        ],
    )


def open_model(given: Mapping[str, Any]) -> Model:
    """The model of `model_options`; with --quiet without the hub's progress bars."""
    import mlxgen

    if given.get("quiet"):
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
    return mlxgen.load(given["model"], revision=given["revision"])


def draft_model(given: Mapping[str, Any], model: Model) -> Model | None:
    """The model of --draft, to guess for `model`. Raises OptionError for one of another vocabulary."""
    if not given["draft"]:
        return None
    from mlxgen.generation.draft import check_vocabulary

    draft = open_model({**given, "model": given["draft"], "revision": None})
    check_vocabulary(model, draft)
    return draft


def generation(ctx: click.Context, given: Mapping[str, Any]) -> Options:
    """The keyword arguments of mlxgen.generate from what `generation_options` gave.

    Raises OptionError for sampling rules that cannot be, before any model is opened. --draft still has to be opened.
    """
    from mlxgen.generation.answer import SAMPLING, Options
    from mlxgen.sampling.samplers import Sampling

    if given.get("lookahead") and given.get("draft"):
        raise click.UsageError("--lookahead and --draft are two ways to guess; give one of them", ctx)
    options = {name: value for name, value in given.items() if name in Options.__annotations__ and name != "draft"}
    options["logit_bias"] = dict(given["logit_bias"]) or None
    options["temperature"] = _temperature(ctx, given["temperature"], given["greedy"])
    Sampling(**{name: value for name, value in options.items() if name in SAMPLING})
    checked: Options = options  # type: ignore[assignment]  # the names are its own
    return checked


def _temperature(ctx: click.Context, temperature: float, greedy: bool) -> float:
    """0 for --greedy, unless the command line itself asks for a temperature."""
    if not greedy or temperature == 0:
        return temperature
    asked = {name: ctx.get_parameter_source(name) for name in ("greedy", "temperature")}
    if asked["temperature"] is ParameterSource.COMMANDLINE:
        if asked["greedy"] is ParameterSource.COMMANDLINE:
            raise click.UsageError("--greedy is --temperature 0; give one of them", ctx)
        return temperature
    return 0.0
