"""The answers of `mlxgen chat`: streamed, stopped by Ctrl-C, printed as text or JSON."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from mlxgen.cli.chat.terminal_echo import no_echo
from mlxgen.cli.chat.transcript import transcript
from mlxgen.cli.output import count, in_words, say, say_statistics, stdout_is_terminal, write, write_json
from mlxgen.cli.progress import prefill_bar
from mlxgen.cli.wrap import StreamWrapper, terminal_width, wrapped

if TYPE_CHECKING:
    from mlxgen.chat.conversation import Conversation
    from mlxgen.generation.results import Generation, Step
    from mlxgen.generation.session import Session


UNFINISHED_WORD = re.compile(r"\S{1,40}\Z")  # at the end of a text that goes on


class Stopped(BaseException):
    """Ctrl-C during prefill."""


class Answerer:
    """Prints answers to standard output, and notes about them to standard error.

    notes: whether there are notes. stats: print statistics after each answer. interactive: Ctrl-C stops the answer
    instead of the program.
    """

    def __init__(self, *, as_json: bool, notes: bool, stats: bool, interactive: bool, quiet: bool) -> None:
        self.as_json, self.notes, self.stats, self.interactive = as_json, notes, stats, interactive
        self._bar = prefill_bar(quiet)
        self._stop = False
        self.record: Generation | None = None  # of the newest answer

    def answer(self, conversation: Conversation, begin: Callable[[], Iterator[Step]]) -> None:
        """Print the text of the steps that `begin` starts, as they come."""
        conversation.request = replace(conversation.request, progress=self._progress)
        session = conversation.session
        slides, computed, dropping = session.slides, session.computed, _drops(session)
        with self._interrupts(), no_echo() if self.interactive else nullcontext():
            steps = begin()
            shown = _ShownText(conversation)
            try:
                for step in steps:
                    if not self.as_json:
                        write(shown.next(step.text))
                    if self._stop:
                        break
            except Stopped:
                pass
            finally:
                if self._bar:
                    self._bar.stop()
                steps.close()  # type: ignore[attr-defined]  # a generator, which puts the session in order
        assert conversation.answer is not None
        record = self.record = conversation.answer.generation
        slid = session.slides - slides
        if self.as_json:
            write_json(_entries(conversation, record, session.computed - computed, slid))
        else:
            write(shown.rest() + "\n")
        if self.stats:
            say_statistics(record)
        self._note_what_is_lost(conversation, slid, began_to_drop=_drops(session) and not dropping)

    def report_error(self, number: int, line: str, error: Exception) -> None:
        """Say why a line of standard input got no answer."""
        if self.as_json:
            write_json({"line": number, "user": line, "error": in_words(error)})
        else:
            say(f"Error: line {number}: {in_words(error)}")

    def note(self, text: str) -> None:
        """Print a dim line to standard error, if there are notes."""
        if self.notes:
            say(text, dim=True)

    def show(self, conversation: Conversation) -> None:
        """Print the conversation so far."""
        text = transcript(conversation)
        if self.as_json:
            write_json({"turns": [{"user": turn.user, "text": turn.answer} for turn in conversation.turns]})
        elif text:
            write(wrapped(text, terminal_width()) if stdout_is_terminal() else text)
        else:
            self.note("(the conversation is empty)")

    def show_loaded(self, conversation: Conversation) -> None:
        """Say what was loaded, and on a terminal show it."""
        if self.interactive and not self.as_json:
            self.show(conversation)
        self.note(f"(loaded {count(len(conversation.turns), 'turn')} with their cache)")

    def _note_what_is_lost(self, conversation: Conversation, slid: int, *, began_to_drop: bool) -> None:
        turn, options = conversation.turns[-1], conversation.session.options
        if turn.finish_reason == "stop" and not turn.answer.strip():
            self.note("(the model ended its answer at once: /retry tries again)")
        if slid:
            unread = conversation.unread
            gone = f": {_turns(unread)} no longer read in full" if unread else ""
            self.note(f"(the conversation is longer than the model's context and slid{gone})")
        if turn.finish_reason == "interrupted":
            self.note("(stopped)")
        elif turn.finish_reason == "context":
            self.note("(the context is full: use /undo or /reset, or start with --overflow slide)")
        if began_to_drop:
            kept = f"the first {options.keep} and " if options.keep else ""
            self.note(f"(longer than --max-kv-size {options.max_kv_size}: only {kept}the newest tokens are read now)")

    def _progress(self, done: int, total: int) -> None:
        if self._bar:
            self._bar(done, total)
        if self._stop:
            raise Stopped

    @contextmanager
    def _interrupts(self) -> Iterator[None]:
        """Let Ctrl-C stop the answer at the next step, and a second Ctrl-C at once."""
        self._stop = False
        if not self.interactive:
            yield
            return

        def interrupt(number: int, frame: FrameType | None) -> None:
            if self._stop:
                raise KeyboardInterrupt
            self._stop = True

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


class _ShownText:
    """An answer's text as it is printed: an answer of a dialogue without leading whitespace.

    On a terminal, lines are broken between words, and the answer of a story begins with a whole word: where the model
    goes on within a word, the word's beginning is shown again.
    """

    def __init__(self, conversation: Conversation) -> None:
        on_terminal, speaks = stdout_is_terminal(), conversation.template.speaks
        begun = None if speaks or not on_terminal else UNFINISHED_WORD.search(conversation.turns[-1].text)
        self._word = begun[0] if begun else ""
        self._strip = speaks or on_terminal
        self._lines = StreamWrapper(terminal_width()) if on_terminal else None

    def next(self, text: str) -> str:
        if self._strip and text:
            if text[0].isspace():
                self._word = ""
            text = self._word + text.lstrip()
            self._strip = not text
        return self._lines.next(text) if self._lines else text

    def rest(self) -> str:
        """What was held back, at the end of the answer."""
        return self._lines.rest() if self._lines else ""


def _drops(session: Session) -> bool:
    """Whether a rotating cache has begun to drop tokens."""
    size = session.options.max_kv_size
    return size is not None and session.cache[0].offset > size


def _turns(numbers: list[int]) -> str:
    first, last = numbers[0], numbers[-1]
    return f"turn {first} is" if first == last else f"turns {first} to {last} are"


def _entries(conversation: Conversation, record: Generation, computed: int, slid: int) -> dict[str, Any]:
    turn = conversation.turns[-1]
    return {
        "turn": len(conversation.turns),
        "user": turn.user,
        "text": turn.answer.strip() if conversation.template.speaks else turn.answer,
        "finish_reason": turn.finish_reason,
        "seed": turn.seed,
        "attempt": turn.attempt,
        "tokens": record.tokens,
        "prompt_tokens": len(record.prompt_tokens),
        "generated_tokens": len(record.tokens),
        "computed_positions": computed,
        "context_length": len(conversation.session.tokens),
        "cache_length": conversation.session.cache_length,
        "slides": slid,
        "prompt_tps": record.prompt_tps,
        "generation_tps": record.generation_tps,
        "guesses": record.guesses,
        "accepted": record.accepted,
    }
