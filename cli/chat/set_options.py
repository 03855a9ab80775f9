"""The options of a conversation, as /set reads and shows them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from mlxgen.cli.settings import CHAT_SETTINGS, OFF, SWITCH, Setting, unescaped
from mlxgen.errors import OptionError

if TYPE_CHECKING:
    from mlxgen.chat.conversation import Conversation


def set_options(conversation: Conversation, line: str) -> None:
    """Change the options that the line names, such as `temperature=0.7 stop="The end"`. Raises OptionError.

    Several stop texts are given as several words.
    """
    values: dict[str, Any] = {}
    stops: list[str] = []
    for word in _words(line):
        name, equals, text = word.partition("=")
        name = name.replace("-", "_")
        if not equals or name not in CHAT_SETTINGS:
            known = ", ".join(CHAT_SETTINGS)
            raise OptionError(f"cannot set {word!r}: use /set NAME=VALUE, where NAME is one of {known}")
        if name == "stop":
            stops.append(text)
        else:
            values[name] = _value(CHAT_SETTINGS[name], text)
    if stops:
        values["stop"] = _stop_texts(stops)
    changed = conversation.request.changed(**values)
    conversation.request = changed
    if "seed" in values:
        conversation.seed = changed.seed


def options_as_text(conversation: Conversation) -> str:
    """All options in one line, as `set_options` takes them."""
    options: Any = conversation.request.options
    values = {name: options.get(name) for name in CHAT_SETTINGS} | {"seed": conversation.seed}
    return "  ".join(f"{name}={_shown(value)}" for name, value in values.items())


def _words(line: str) -> list[str]:
    """The words of a line; quotes keep spaces in one word, and a backslash is a character like others."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.escape, lexer.commenters = True, "", ""
    try:
        return list(lexer)
    except ValueError:
        raise OptionError(f"a quote is not closed: {line}") from None


def _stop_texts(values: list[str]) -> list[str]:
    if len(values) == 1 and values[0].lower() in OFF:
        return []
    if "" in values:
        raise OptionError("a stop text must not be empty; stop=off removes the stop texts")
    return [unescaped(value) for value in values]


def _shown(value: Any) -> str:
    """A value as /set takes it."""
    if isinstance(value, tuple | list):
        return " stop=".join(ascii(text) if not text.isprintable() else repr(text) for text in value) or "off"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "off" if value is None else str(value)


def _value(setting: Setting, text: str) -> Any:
    if setting.is_flag:
        if text.lower() not in SWITCH:
            raise OptionError(f"{setting.name} must be on or off, not {text!r}")
        return SWITCH[text.lower()]
    if setting.can_be_off and text.lower() in OFF:
        return None
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    raise OptionError(f"{setting.name} must be a number, not {text!r}")
