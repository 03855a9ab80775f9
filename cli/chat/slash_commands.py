"""The /commands of `mlxgen chat`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mlxgen.atomic_file import replacing_file
from mlxgen.chat.conversation import system_tokens
from mlxgen.cli.chat.set_options import options_as_text, set_options
from mlxgen.cli.chat.transcript import transcript
from mlxgen.cli.output import count, guesses_in_words, say, size
from mlxgen.errors import OptionError

if TYPE_CHECKING:
    from mlxgen.chat.conversation import Conversation
    from mlxgen.chat.templates import Message
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
            say(f"{f'{name} {takes}'.ljust(width)}  {command.__doc__}", indent=width + 2)
        say("Enter sends. Alt-Enter, or \\ and Enter, starts a new line. Ctrl-C stops an answer. Ctrl-D quits.")

    def reset(self, rest: str) -> None:
        """start a new conversation with the same system text"""
        self.conversation.reset()
        self.answerer.note("(new conversation)")

    def undo(self, rest: str) -> None:
        """remove the last turn"""
        turn = self.conversation.undo()
        self.answerer.note(f"(undone: {_short(turn.user) or 'the newest part of the story'})")

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
        self.answerer.show_loaded(self.conversation)

    def show(self, rest: str) -> None:
        """show the conversation so far"""
        self.answerer.show(self.conversation)

    def export(self, rest: str) -> None:
        """write the conversation to a text file"""
        file = _file(rest, "export")
        if not self.conversation.turns:
            raise OptionError("nothing to export: the conversation is empty")
        with replacing_file(file) as part:
            part.write_text(transcript(self.conversation), encoding="utf-8")
        self.answerer.note(f"(written to {file})")

    def set(self, rest: str) -> None:
        """change an option, such as temperature=0.7, top_p=off or stop="The end"; without one, show all"""
        if rest:
            set_options(self.conversation, rest)
        else:
            say(options_as_text(self.conversation))

    def stats(self, rest: str) -> None:
        """show tokens, speed and memory"""
        import mlx.core as mx

        conversation, session, record = self.conversation, self.conversation.session, self.answerer.record
        table = session.model.config.n_positions
        context = count(len(session.tokens), "token")
        say(f"Turns: {len(conversation.turns)}. Context: {context}. Slides: {session.slides}")
        say(f"Cache: {session.cache_length:,} of {table:,} positions, {size(session.nbytes)}")
        say(f"Processed so far: {session.computed:,} positions. Peak memory: {size(mx.get_peak_memory())}")
        if record:
            speed = f"{record.generation_tps:.1f} tokens/s, seed {record.seed}"
            prompt = count(len(record.prompt_tokens), "new prompt token")
            say(f"Last answer: {prompt}, {len(record.tokens)} generated, {speed}")
            if record.guesses:
                say(f"Guesses: {guesses_in_words(record)}")

    def system(self, rest: str) -> None:
        """set the text before the conversation; without TEXT, remove it"""
        conversation = self.conversation
        if not rest and not conversation.system:
            self.answerer.note("(there is no system text to remove; /system TEXT sets one)")
            return
        check_system(conversation, rest)
        conversation.system = rest
        when = ", from the next turn on" if conversation.turns else ""
        self.answerer.note(f"(the system text is {'set' if rest else 'removed'}{when})")

    def exit(self, rest: str) -> None:
        """quit (like Ctrl-D)"""
        raise Quit

    def _answer(self, begin: Callable[[], Iterator[Step]]) -> None:
        self.answerer.answer(self.conversation, begin)


COMMANDS: dict[str, tuple[Callable[[Commands, str], None], str]] = {
    "/help": (Commands.help, ""),
    "/reset": (Commands.reset, ""),
    "/undo": (Commands.undo, ""),
    "/retry": (Commands.retry, ""),
    "/edit": (Commands.edit, "[TEXT]"),
    "/save": (Commands.save, "FILE"),
    "/load": (Commands.load, "FILE"),
    "/show": (Commands.show, ""),
    "/export": (Commands.export, "FILE"),
    "/set": (Commands.set, "NAME=VALUE"),
    "/stats": (Commands.stats, ""),
    "/system": (Commands.system, "[TEXT]"),
    "/exit": (Commands.exit, ""),
}


def check_system(conversation: Conversation, text: str) -> None:
    """Raise OptionError or TemplateError for a system text that the model or the template cannot take."""
    model = conversation.session.model
    model.tokenizer.encode(text)  # raises for characters without tokens
    taken = system_tokens(model, conversation.template, text)
    if taken >= model.config.n_positions and conversation.session.options.overflow == "stop":
        raise OptionError(
            f"the system text has {taken:,} tokens, and the model's context only {model.config.n_positions:,} positions"
        )
    said: Message = {"role": "user", "content": "a"}
    if text:
        conversation.template.write([{"role": "system", "content": text}, said], True)


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
