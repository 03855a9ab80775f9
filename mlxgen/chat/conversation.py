"""Conversations: a template writes the turns as text, and a session processes only what is new in it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mlxgen.chat.templates import Message, Template, TemplateError, choose_template
from mlxgen.errors import OptionError, reason_of
from mlxgen.generation.answer import Answer
from mlxgen.generation.context import Mark
from mlxgen.generation.request import Request, check_options, checked_seed
from mlxgen.generation.results import Step
from mlxgen.generation.session import Session
from mlxgen.generation.session_file import SessionFileError, write
from mlxgen.json_file import describe
from mlxgen.model import Model, encode_prompt, start_tokens

CONTEXT_TOKENS = 16  # how many tokens before an answer can affect its decoding
NOTES = "chat"  # the entry of a session file's notes


@dataclass(slots=True)
class Turn:
    """A message of the user and the model's answer.

    answer: as it was shown, with its leading space. start: how many tokens the session had before the turn; processed:
    how many of them were processed. first: the index of the answer's first token. text: the context's text before it.
    """

    user: str
    start: int
    processed: int
    first: int
    text: str
    seed: int
    attempt: int = 0
    answer: str = ""
    finish_reason: str = "interrupted"


BLANK = Turn("", 0, 0, 0, "", 0)


class Conversation:
    """A conversation with a model. undo, retry and edit change the newest turn.

    session: an empty session. request: the options of every turn. keep: how many of the first tokens a slide keeps;
    None keeps the system text and the first turn if they fill no more than a quarter of the position table. seed: each
    turn's seed is derived from it, the turn's index and the attempt, so that the same input in the same place gets the
    same answer. answer: the newest answer, with its record.
    """

    def __init__(
        self,
        session: Session,
        template: Template,
        *,
        system: str = "",
        request: Request | None = None,
        seed: int | None = None,
        keep: int | None = None,
    ) -> None:
        self.session, self.template, self.system = session, template, system
        self.request = request or check_options()
        self.answer: Answer | None = None
        self.seed = checked_seed(seed)
        self.turns: list[Turn] = []
        self._keep = keep

    def say(self, text: str) -> Iterator[Step]:
        """Add a message; returns an iterator over the steps of the answer.

        Wherever the caller stops, the text so far is the answer. Raises OptionError and ContextError before the first
        step. If this or a later step raises, the conversation is unchanged.
        """
        return self._say(text, 0, self._snapshot())

    def undo(self) -> Turn:
        """Remove the newest turn, also from the cache; returns it. Raises OptionError for an empty conversation."""
        if not self.turns:
            raise OptionError("there is nothing to undo: the conversation is empty")
        turn = self.turns.pop()
        self.session.rewind(to=Mark(turn.start, min(turn.processed, turn.start)))
        return turn

    def retry(self) -> Iterator[Step]:
        """Answer the newest message again, with another seed. Raises OptionError for an empty conversation."""
        restore = self._snapshot()
        turn = self.undo()
        return self._say(turn.user, turn.attempt + 1, restore)

    def edit(self, text: str) -> Iterator[Step]:
        """Replace the newest message and answer it. Raises OptionError for an empty conversation."""
        restore = self._snapshot()
        self.undo()
        return self._say(text, 0, restore)

    def reset(self) -> None:
        """Remove all turns. The system text stays."""
        self.turns.clear()
        self.session.rewind(len(self.session.tokens))

    @property
    def text(self) -> str:
        """The conversation as text, as the template writes it."""
        return self._text_of(self.turns, prompt=False)

    @property
    def unread(self) -> list[int]:
        """The numbers, from 1, of the turns that slides have dropped partly or completely."""
        slide = self.session.slide
        starts = [turn.start for turn in self.turns]
        return [i for i, start in enumerate(starts, 1) if slide and slide.keep <= start < slide.start]

    def save(self, path: str | Path) -> Path:
        """Save the conversation as a session file; returns its path. Raises SessionFileError."""
        turns = [asdict(turn) for turn in self.turns]
        chat = {"template": self.template.name, "system": self.system, "seed": self.seed, "turns": turns}
        return write(self.session.state, self.session.model, path, {NOTES: chat})

    def load(self, path: str | Path) -> None:
        """Replace this conversation with a saved one. If this raises SessionFileError, nothing is changed."""
        session, notes = Session.from_file(path, self.session.model)
        if not isinstance(notes, dict) or NOTES not in notes:
            raise SessionFileError(f"{path}: it has a session but no conversation; open it with mlxgen.Session.load")
        try:
            chat = notes[NOTES]
            turns = [_checked_turn(turn) for turn in chat["turns"]]
            template, system = choose_template(session.model, chat["template"]), chat["system"]
            seed = checked_seed(chat["seed"])
            indices = [index for turn in turns for index in (turn.start, turn.first)]
            if indices != sorted(indices) or (indices and not 0 <= indices[0] <= indices[-1] <= len(session.tokens)):
                raise ValueError("its turns are out of order")
            if not isinstance(system, str):
                raise ValueError("its system text is not text")
        except (KeyError, TypeError, ValueError) as error:
            raise SessionFileError(f"{path}: its conversation is invalid ({reason_of(error)})") from None
        self.session, self.turns, self.template, self.system, self.seed = session, turns, template, system, seed

    def _snapshot(self) -> Callable[[], None]:
        """A function that restores the conversation as it is now, for when a turn fails."""
        session, turns = self.session, [replace(turn) for turn in self.turns]
        tokens, slide_points, slide_keep = list(session.tokens), list(session.slide_points), session.slide_keep

        def restore() -> None:
            session.reset_to(tokens)
            session.plan_slide(slide_keep, slide_points)
            self.turns = turns

        return restore

    def _say(self, text: str, attempt: int, restore: Callable[[], None]) -> Iterator[Step]:
        try:
            turn = self._begin(text if self.template.name == "model" else text.rstrip(), attempt)
            self.answer = self._begin_answer(turn)
            return self._steps(turn, self.answer, restore)
        except Exception:  # also one that MLX raises, such as for memory that is not there
            restore()
            raise

    def _begin(self, text: str, attempt: int) -> Turn:
        """Add a turn and extend the context up to the beginning of its answer."""
        session = self.session
        whole = self._text_of([*self.turns, text])
        rest = self._rewind_to(whole)
        if rest is None:
            self._tokenize_again()
            rest = self._rewind_to(whole)
        if rest is None:  # the template writes old turns differently from new ones
            session.rewind(len(session.tokens))
            for turn in self.turns:
                turn.start = turn.processed = turn.first = 0
                turn.text = ""
            rest = whole
        mark = session.mark()
        ids = encode_prompt(session.model, rest, begins=not (session.tokens or self.template.writes_start))
        session.extend(ids if ids or session.tokens else start_tokens(session.model))
        index = len(self.turns)
        seed = self.seed if index == attempt == 0 else random.Random(f"{self.seed} {index} {attempt}").getrandbits(32)
        turn = Turn(text, mark.tokens, mark.processed, len(session.tokens), whole, seed, attempt)
        self.turns.append(turn)
        session.plan_slide(self._kept(), [turn.start for turn in self.turns if turn.start])
        return turn

    def _begin_answer(self, turn: Turn) -> Answer:
        stop = (*self.template.stop, *self.request.stop)
        return self.session.answer(replace(self.request, prompt=turn.user, stop=stop, seed=turn.seed))

    def _steps(self, turn: Turn, answer: Answer, restore: Callable[[], None]) -> Iterator[Step]:
        try:
            for step in answer:
                turn.answer += step.text
                turn.finish_reason = step.finish_reason or turn.finish_reason
                yield step
            if turn.finish_reason == "interrupted":  # the context was full, so there was no step
                turn.finish_reason = "context"
        except Exception:  # also one that MLX raises, such as for memory that is not there
            restore()
            raise
        finally:
            answer.close()

    def _text_of(self, turns: Sequence[Turn | str], *, prompt: bool = True) -> str:
        """The conversation as text. A turn that is a string is a message without an answer."""
        messages: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        for turn in turns:
            messages.append({"role": "user", "content": turn if isinstance(turn, str) else turn.user})
            if isinstance(turn, Turn):
                messages.append({"role": "assistant", "content": turn.answer})
        return self.template.write(messages, prompt)

    def _rewind_to(self, whole: str) -> str | None:
        """Remove the tokens that go beyond the whole text; returns the text that is still missing.

        If the model generated a stop text that the template writes as well, its tokens stay. Returns None if the
        context does not begin like the whole text.
        """
        session, last = self.session, self.turns[-1] if self.turns else None
        first, text = (last.first, last.text) if last else (0, "")
        if not whole.startswith(text) or (not last and session.tokens):
            return None
        rest = whole[len(text) :]
        context = session.tokens[max(0, first - CONTEXT_TOKENS) : first]
        before = session.model.tokenizer.decode(context)
        for end in range(len(session.tokens), first - 1, -1):
            both = session.model.tokenizer.decode(context + session.tokens[first:end])
            if both.startswith(before) and rest.startswith(both[len(before) :]):
                session.rewind(len(session.tokens) - end)
                return rest[len(both) - len(before) :]
        return None

    def _tokenize_again(self) -> None:
        """Tokenize every turn again after a change of the system text. An unchanged beginning stays in the cache."""
        ids: list[int] = []
        tokenizer, written = self.session.model.tokenizer, ""
        for at, turn in enumerate(self.turns):
            text = self._text_of([*self.turns[:at], turn.user])
            if not text.startswith(written):
                break
            turn.start = turn.processed = len(ids)
            added = tokenizer.encode(text[len(written) :])
            ids += added if ids or self.template.writes_start else tokenizer.with_start(added)
            turn.first, turn.text = len(ids), text
            ids += tokenizer.encode(turn.answer)
            written = text + turn.answer
        self.session.reset_to(ids)

    def _kept(self) -> int:
        """How many of the first tokens the next slide keeps."""
        session = self.session
        if session.options.overflow == "stop":
            return session.slide_keep
        if self._keep is not None:
            return self._keep
        quarter = session.model.config.n_positions // 4
        first_turn = [turn.start for turn in self.turns[1:2] if turn.start]
        sizes = (*first_turn, system_tokens(session.model, self.template, self.system))
        return next((size for size in sizes if size <= min(quarter, len(session.tokens))), 0)


def _checked_turn(entries: Any) -> Turn:
    """A turn from a file. Raises TypeError or ValueError for anything else."""
    turn = Turn(**entries)
    for name, default in asdict(BLANK).items():
        value = getattr(turn, name)
        if type(value) is not type(default) or (isinstance(value, int) and value < 0):
            raise ValueError(f"the {name} of a turn is {describe(value)}")
    return turn


def system_tokens(model: Model, template: Template, system: str) -> int:
    """How many tokens the system text has at the beginning of a conversation."""
    if not system:
        return 0
    try:
        ids = model.tokenizer.encode(template.write([{"role": "system", "content": system}], False))
        return len(ids if template.writes_start else model.tokenizer.with_start(ids))
    except TemplateError:  # a template may reject a conversation without turns
        return 0
