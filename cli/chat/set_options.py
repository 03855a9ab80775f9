"""The options of a conversation, as /set reads and shows them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from mlxgen.cli.settings import CHAT_SETTINGS, OFF, SWITCH, Setting, token_ids, unescaped
from mlxgen.errors import OptionError

if TYPE_CHECKING:
    from mlxgen.chat.conversation import Conversation

TEXTS = ("stop", "bad_words")  # options of several texts
FLAGS = {"ban": "bad_words"}  # options whose flag has another name


def set_options(conversation: Conversation, line: str) -> None:
    """Change the options that the line names, such as `temperature=0.7 stop="The end"`. Raises OptionError.

    Several stop texts or banned texts are given as several words.
    """
    values: dict[str, Any] = {}
    texts: dict[str, list[str]] = {}
    for word in _words(line):
        name, equals, text = word.partition("=")
        name = name.replace("-", "_")
        name = FLAGS.get(name, name)
        if not equals or name not in CHAT_SETTINGS:
            known = ", ".join(CHAT_SETTINGS)
            raise OptionError(f"cannot set {word!r}: use /set NAME=VALUE, where NAME is one of {known}")
        if name in TEXTS:
            texts.setdefault(name, []).append(text)
        else:
            values[name] = _value(CHAT_SETTINGS[name], text)
    values |= {name: _texts(name, given) for name, given in texts.items()}
    changed = conversation.request.changed(**values)
    changed.check_against(conversation.session.model)
    conversation.request = changed
    if "seed" in values:
        conversation.seed = changed.seed


def options_as_text(conversation: Conversation) -> str:
    """All options in one line, as `set_options` takes them."""
    options: Any = conversation.request.options
    values = {name: options.get(name) for name in CHAT_SETTINGS} | {"seed": conversation.seed}
    return "  ".join(f"{name}={_shown(name, value)}" for name, value in values.items())


def _words(line: str) -> list[str]:
    """The words of a line; quotes keep spaces in one word, and a backslash is a character like others."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.escape, lexer.commenters = True, "", ""
    try:
        return list(lexer)
    except ValueError:
        raise OptionError(f"a quote is not closed: {line}") from None


def _texts(name: str, values: list[str]) -> list[str]:
    if len(values) == 1 and values[0].lower() in OFF:
        return []
    if "" in values:
        raise OptionError(f"a text of {name} must not be empty; {name}=off removes all of them")
    return [unescaped(value) for value in values]


def _shown(name: str, value: Any) -> str:
    """A value as /set takes it."""
    if name in TEXTS:
        return f" {name}=".join(_shown_text(text) for text in value) or "off"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "off"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "off" if value is None else str(value)


def _shown_text(text: str | tuple[int, ...]) -> str:
    return ascii(text) if isinstance(text, str) and not text.isprintable() else repr(text)


def _value(setting: Setting, text: str) -> Any:
    if setting.is_flag:
        if text.lower() not in SWITCH:
            raise OptionError(f"{setting.name} must be on or off, not {text!r}")
        return SWITCH[text.lower()]
    if setting.can_be_off and text.lower() in OFF:
        return None
    if setting.name == "suppress_tokens":
        try:
            return token_ids(text)
        except ValueError:
            raise OptionError(f"suppress_tokens must be token ids such as 13,198, not {text!r}") from None
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    raise OptionError(f"{setting.name} must be a number, not {text!r}")
