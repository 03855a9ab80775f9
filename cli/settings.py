"""The table of generation options: how the command line declares each, and where else it can be set."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

from mlxgen.cli.prompt import Utf8Text

F = TypeVar("F", bound=Callable[..., Any])

MAX_SEED = 2**63 - 1
ESCAPES = {r"\n": "\n", r"\t": "\t", r"\r": "\r", r"\\": "\\"}
OFF = ("off", "none")
SWITCH = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


class OrOff(click.ParamType[Any]):
    """A number, or "off" (None) for a rule that does not apply."""

    def __init__(self, number: click.ParamType[Any]) -> None:
        self.number = number
        self.name = f"{number.name} or off"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.lower() in OFF:
            return None
        return self.number.convert(value, param, ctx)


class TokenBias(click.ParamType[tuple[int, float]]):
    """TOKEN=BIAS: a token id and the number to add to its logit."""

    name = "token=bias"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, float]:
        try:
            token, bias = str(value).split("=")
            return int(token), float(bias)
        except ValueError:
            self.fail(f"expected TOKEN=BIAS, such as 50256=-5, not {value!r}", param, ctx)


class TokenIds(click.ParamType[tuple[int, ...]]):
    """ID,ID,…: token ids."""

    name = "ids"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        try:
            return token_ids(value)
        except ValueError:
            self.fail(f"expected token ids such as 13,198, not {value!r}", param, ctx)


def token_ids(text: Any) -> tuple[int, ...]:
    """Token ids, separated by commas or spaces. Raises ValueError."""
    return tuple(int(part) for part in text.replace(",", " ").split()) if isinstance(text, str) else tuple(text)


class WholeText(Utf8Text):
    """One of several texts. An environment variable holds one, spaces included."""

    def split_envvar_value(self, rv: str) -> list[str]:
        return [rv]


def _unescape(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    if "" in values:
        raise click.BadParameter("the text must not be empty", ctx, param)
    return tuple(unescaped(value) for value in values)


def unescaped(text: str) -> str:
    """A stop text or a banned text as it is meant: with line breaks for \\n."""
    return re.sub(r"\\[ntr\\]", lambda found: ESCAPES[found[0]], text)


class Setting(NamedTuple):
    """One option of a generation. Its name is the keyword argument of mlxgen.generate.

    declare: adds the option to a command. per_line: whether a line of `mlxgen batch` can set it. in_chat: whether
    /set can. is_flag: on or off. can_be_off: whether None is a value.
    """

    name: str
    declare: Callable[[F], F]
    per_line: bool
    in_chat: bool
    is_flag: bool
    can_be_off: bool


def _setting(*flags: str, per_line: bool = True, in_chat: bool = True, **attributes: Any) -> Setting:
    option = click.Option(list(flags), **attributes)
    return Setting(
        name=str(option.name),
        declare=click.option(*flags, **attributes),
        per_line=per_line,
        in_chat=in_chat,
        is_flag=bool(option.is_flag),
        can_be_off=isinstance(option.type, OrOff) or "default" not in attributes,
    )


SETTINGS = (
    _setting(
        "-n",
        "--max-tokens",
        type=click.IntRange(min=1),
        default=256,
        show_default=True,
        metavar="N",
        help="Generate at most N tokens.",
    ),
    _setting(
        "-t",
        "--temperature",
        type=float,
        default=0.8,
        show_default=True,
        metavar="T",
        help="Divide the logits by T: below 1 is more predictable, above 1 more varied, 0 is greedy.",
    ),
    _setting(
        "-k",
        "--top-k",
        type=OrOff(click.INT),
        default=40,
        show_default=True,
        metavar="N|off",
        help="Sample from the N most probable tokens.",
    ),
    _setting(
        "-p",
        "--top-p",
        type=OrOff(click.FLOAT),
        metavar="P|off",
        help="Sample from the smallest set of most probable tokens whose probabilities add up to P.",
    ),
    _setting(
        "--min-p",
        type=OrOff(click.FLOAT),
        metavar="P|off",
        help="Exclude tokens less than P times as probable as the most probable one.",
    ),
    _setting(
        "--typical-p",
        type=OrOff(click.FLOAT),
        metavar="P|off",
        help="Sample from the tokens whose surprise is closest to the expected one, whose probabilities add up to P.",
    ),
    _setting(
        "--epsilon-cutoff",
        type=OrOff(click.FLOAT),
        metavar="P|off",
        help="Exclude tokens with a probability below P, but never the most probable one.",
    ),
    _setting(
        "--eta-cutoff",
        type=OrOff(click.FLOAT),
        metavar="P|off",
        help="Like --epsilon-cutoff, with a lower limit where many tokens are possible.",
    ),
    _setting(
        "--greedy",
        per_line=False,
        in_chat=False,
        is_flag=True,
        help="Always choose the most probable token (same as --temperature 0).",
    ),
    _setting(
        "--repetition-penalty",
        type=float,
        metavar="X",
        help="For tokens already in the text, divide positive logits by X and multiply negative ones by X:"
        " above 1 repeats less.",
    ),
    _setting(
        "--presence-penalty",
        type=float,
        metavar="X",
        help="Subtract X from the logits of tokens already in the text.",
    ),
    _setting(
        "--frequency-penalty",
        type=float,
        metavar="X",
        help="Subtract X from a token's logit for each time it is in the text.",
    ),
    _setting(
        "--logit-bias",
        per_line=False,
        in_chat=False,
        type=TokenBias(),
        multiple=True,
        metavar="TOKEN=BIAS",
        help="Add BIAS to the logit of a token id; -inf bans the token. Repeatable.",
    ),
    _setting(
        "--no-repeat-ngram",
        type=OrOff(click.INT),
        metavar="N|off",
        help="Never repeat N tokens in a row that are already in the text.",
    ),
    _setting(
        "--ban",
        "--bad-words",
        "bad_words",
        type=WholeText(),
        multiple=True,
        callback=_unescape,
        metavar="TEXT",
        help="Never complete TEXT, also after a space; escapes as in --stop. Repeatable.",
    ),
    _setting(
        "--min-tokens",
        type=click.IntRange(min=0),
        metavar="N",
        help="Choose no end token before N tokens.",
    ),
    _setting(
        "--suppress-tokens",
        type=OrOff(TokenIds()),
        metavar="ID,ID,…",
        help="Never choose these token ids.",
    ),
    _setting(
        "--seed",
        type=click.IntRange(0, MAX_SEED),
        metavar="N",
        help="Random seed, for repeatable output.  [default: a new one each time]",
    ),
    _setting(
        "--stop",
        type=WholeText(),
        multiple=True,
        callback=_unescape,
        metavar="TEXT",
        help=r"Stop before TEXT appears; \n, \t, \r and \\ are escapes. Repeatable.",
    ),
    _setting("--ignore-eos", is_flag=True, help="Continue past the model's end token."),
    _setting(
        "--max-kv-size",
        per_line=False,
        in_chat=False,
        type=click.IntRange(min=1),
        metavar="N",
        help="Keep at most N positions in the KV cache and drop the oldest first.",
    ),
    _setting(
        "--keep",
        per_line=False,
        in_chat=False,
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="N",
        help="Always keep the first N positions when the cache rotates or slides.",
    ),
    _setting(
        "--overflow",
        per_line=False,
        in_chat=False,
        type=click.Choice(["stop", "slide"]),
        default="stop",
        show_default=True,
        help="When the model's position table is full: stop, or slide on with half of it: the first --keep positions"
        " and the newest ones.",
    ),
)

LINE_SETTINGS = tuple(setting.name for setting in SETTINGS if setting.per_line)
CHAT_SETTINGS = {setting.name: setting for setting in SETTINGS if setting.in_chat}
