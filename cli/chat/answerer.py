"""The answers of `mlxgen chat`: streamed, stopped by Ctrl-C, printed as text or JSON."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from mlxgen.cli.output import in_words, say, say_statistics, write, write_json
from mlxgen.cli.progress import prefill_bar

if TYPE_CHECKING:
    from mlxgen.chat.conversation import Conversation
    from mlxgen.generation.results import Generation, Step
    from mlxgen.generation.session import Session


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
        with self._interrupts():
            steps = begin()
            shown = _ShownText(conversation.template.speaks)
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
            write("\n")
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

    def _note_what_is_lost(self, conversation: Conversation, slid: int, *, began_to_drop: bool) -> None:
        turn, options = conversation.turns[-1], conversation.session.options
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
    """An answer's text as it is printed: without leading whitespace."""

    def __init__(self, strip: bool) -> None:
        self._strip = strip

    def next(self, text: str) -> str:
        if self._strip:
            text = text.lstrip()
            self._strip = not text
        return text


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
