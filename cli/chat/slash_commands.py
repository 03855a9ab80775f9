"""The /commands of `mlxgen chat`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxgen.cli.output import guesses_in_words, say, size
from mlxgen.cli.settings import CHAT_SETTINGS, OFF, SWITCH, Setting
from mlxgen.errors import OptionError

if TYPE_CHECKING:
    from mlxgen.chat.conversation import Conversation
    from mlxgen.cli.chat.answerer import Answerer
    from mlxgen.generation.results import Step

Ask = Callable[[str], str]


class Quit(Exception):
    """The user wants to quit."""


class Commands:
    """The commands on a conversation; their docstrings are their help. ask: the input line, for /edit on a terminal."""

    def __init__(self, conversation: Conversation, answerer: Answerer, ask: Ask | None = None) -> None:
        self.conversation, self.answerer, self.ask = conversation, answerer, ask

    def run(self, line: str) -> None:
        """Run a line that starts with "/". Raises OptionError for an unknown command, and Quit for /exit."""
        word, _, rest = line.partition(" ")
        command = COMMANDS.get(word)
        if command is None:
            raise OptionError(
                f"unknown command {word}; /help lists the commands. To send text that starts with /, begin with //"
            )
        command[0](self, rest.strip())

    def help(self, rest: str) -> None:
        """show this list"""
        width = max(len(f"{name} {takes}") for name, (_, takes) in COMMANDS.items())
        for name, (command, takes) in COMMANDS.items():
            say(f"{f'{name} {takes}'.ljust(width)}  {command.__doc__}")
        say("Enter sends. Alt-Enter, or \\ and Enter, starts a new line. Ctrl-C stops an answer. Ctrl-D quits.")

    def reset(self, rest: str) -> None:
        """start a new conversation with the same system text"""
        self.conversation.reset()
        self.answerer.note("(new conversation)")

    def undo(self, rest: str) -> None:
        """remove the last turn"""
        turn = self.conversation.undo()
        self.answerer.note(f"(undone: {_short(turn.user)})")

    def retry(self, rest: str) -> None:
        """generate another answer to your last text"""
        self._answer(self.conversation.retry)

    def edit(self, rest: str) -> None:
        """change your last text and generate a new answer"""
        if not self.conversation.turns:
            raise OptionError("nothing to edit: the conversation is empty")
        text = rest or (self.ask(self.conversation.turns[-1].user) if self.ask else "")
        if not text.strip():
            raise OptionError("the new text is missing: /edit TEXT")
        self._answer(lambda: self.conversation.edit(text))

    def save(self, rest: str) -> None:
        """save the conversation and its cache"""
        self.answerer.note(f"(saved to {self.conversation.save(_file(rest, 'save'))})")

    def load(self, rest: str) -> None:
        """continue a saved conversation"""
        self.conversation.load(_file(rest, "load"))
        self.answerer.note(f"(loaded {len(self.conversation.turns)} turns with their cache)")

    def set(self, rest: str) -> None:
        """change an option, such as temperature=0.7 or top_p=off; without one, show all"""
        if not rest:
            options: Any = self.conversation.request.options
            values = {name: options.get(name) for name in CHAT_SETTINGS} | {"seed": self.conversation.seed}
            say("  ".join(f"{name}={'off' if value is None else value}" for name, value in values.items()))
            return
        for word in rest.split():
            self._set_one(word)

    def stats(self, rest: str) -> None:
        """show tokens, speed and memory"""
        import mlx.core as mx

        conversation, session, record = self.conversation, self.conversation.session, self.answerer.record
        table = session.model.config.n_positions
        say(f"Turns: {len(conversation.turns)}. Context: {len(session.tokens):,} tokens. Slides: {session.slides}")
        say(f"Cache: {session.cache_length:,} of {table:,} positions, {size(session.nbytes)}")
        say(f"Processed so far: {session.computed:,} positions. Peak memory: {size(mx.get_peak_memory())}")
        if record:
            speed = f"{record.generation_tps:.1f} tokens/s, seed {record.seed}"
            say(f"Last answer: {len(record.prompt_tokens)} new prompt tokens, {len(record.tokens)} generated, {speed}")
            if record.guesses:
                say(f"Guesses: {guesses_in_words(record)}")

    def system(self, rest: str) -> None:
        """set the text before the conversation; without TEXT, remove it"""
        self.conversation.system = rest
        when = "from the next turn on" if self.conversation.turns else "set" if rest else "removed"
        self.answerer.note(f"({when})")

    def exit(self, rest: str) -> None:
        """quit (like Ctrl-D)"""
        raise Quit

    def _answer(self, begin: Callable[[], Iterator[Step]]) -> None:
        self.answerer.answer(self.conversation, begin)

    def _set_one(self, word: str) -> None:
        name, equals, text = word.partition("=")
        name = name.replace("-", "_")
        if not equals or name not in CHAT_SETTINGS:
            raise OptionError(
                f"cannot set {word!r}: use /set NAME=VALUE, where NAME is one of {', '.join(CHAT_SETTINGS)}"
            )
        changed = self.conversation.request.changed(**{name: _value(CHAT_SETTINGS[name], text)})
        self.conversation.request = changed
        if name == "seed":
            self.conversation.seed = changed.seed


COMMANDS: dict[str, tuple[Callable[[Commands, str], None], str]] = {
    "/help": (Commands.help, ""),
    "/reset": (Commands.reset, ""),
    "/undo": (Commands.undo, ""),
    "/retry": (Commands.retry, ""),
    "/edit": (Commands.edit, "[TEXT]"),
    "/save": (Commands.save, "FILE"),
    "/load": (Commands.load, "FILE"),
    "/set": (Commands.set, "NAME=VALUE"),
    "/stats": (Commands.stats, ""),
    "/system": (Commands.system, "[TEXT]"),
    "/exit": (Commands.exit, ""),
}


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


def _file(rest: str, command: str) -> Path:
    if not rest:
        raise OptionError(f"/{command} needs a file name")
    try:
        return Path(rest).expanduser()
    except RuntimeError:
        raise OptionError(f"{rest}: there is no such user") from None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."
