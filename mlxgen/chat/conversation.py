"""A conversation: turns written down by a template, on a session that has processed all but the newest words."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mlxgen.chat.templates import Message, Template, TemplateError, choose_template
from mlxgen.errors import MlxgenError, OptionError
from mlxgen.generation.answer import Answer
from mlxgen.generation.context import Mark
from mlxgen.generation.request import Request, check_options, checked_seed
from mlxgen.generation.results import Step
from mlxgen.generation.session import Session
from mlxgen.generation.session_file import SessionFileError, write
from mlxgen.model import Model, encode_prompt, start_token

CONTEXT_TOKENS = 16  # how many tokens before an answer decide how it decodes
NOTES = "chat"  # the entry of a session file's notes


@dataclass(slots=True)
class Turn:
    """What the user said and what the model answered.

    answer: as it was shown, with the space before it. start, processed: the session's tokens before the turn, and how
    many of them were processed. first: where the answer begins. text: the context as text, up to there.
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


class Conversation:
    """Say something, and the model answers; undo, retry and edit take the newest turn back.

    session: an empty one. request: the options of every turn. keep: how many of the first tokens stay when the context
    slides; None keeps the system text and the first turn where they fill no more than a quarter of the table. seed:
    each turn's seed follows from it, the turn's place and the attempt, so that the same input at the same place gives
    the same answer. answer: the newest one, with its record.
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
        """The model's answer, a step at a time. Wherever the caller stops, what was written so far is the answer.

        Raises OptionError and ContextError here. A turn that is refused, here or at a step, leaves nothing changed.
        """
        return self._say(text, 0, self._way_back())

    def undo(self) -> Turn:
        """Take the newest turn back, out of the cache as well; returns it."""
        if not self.turns:
            raise OptionError("there is nothing to undo: the conversation is empty")
        turn = self.turns.pop()
        self.session.rewind(to=Mark(turn.start, min(turn.processed, turn.start)))
        return turn

    def retry(self) -> Iterator[Step]:
        """Another answer to the same words."""
        back = self._way_back()
        turn = self.undo()
        return self._say(turn.user, turn.attempt + 1, back)

    def edit(self, text: str) -> Iterator[Step]:
        """An answer to other words in place of the newest turn's."""
        back = self._way_back()
        self.undo()
        return self._say(text, 0, back)

    def reset(self) -> None:
        """Forget all turns; the system text stays."""
        self.turns.clear()
        self.session.rewind(len(self.session.tokens))

    @property
    def unread(self) -> list[int]:
        """Numbers, from 1, of the turns that slides have dropped, in part or whole."""
        slide = self.session.slide
        starts = [turn.start for turn in self.turns]
        return [i for i, start in enumerate(starts, 1) if slide and slide.keep <= start < slide.start]

    def save(self, path: str | Path) -> Path:
        turns = [asdict(turn) for turn in self.turns]
        chat = {"template": self.template.name, "system": self.system, "seed": self.seed, "turns": turns}
        return write(self.session.state, self.session.model, path, {NOTES: chat})

    def load(self, path: str | Path) -> None:
        """Go on with a saved conversation instead. Raises SessionFileError, with nothing changed."""
        session, notes = Session.from_file(path, self.session.model)
        if NOTES not in notes:
            raise SessionFileError(f"{path}: it holds a session but no conversation; mlxgen.Session.load opens it")
        try:
            chat = notes[NOTES]
            turns = [Turn(**turn) for turn in chat["turns"]]
            template, system, seed = (
                choose_template(session.model, chat["template"]),
                str(chat["system"]),
                int(chat["seed"]),
            )
            places = [place for turn in turns for place in (turn.start, turn.first)]
            if places != sorted(places) or (places and places[-1] > len(session.tokens)):
                raise ValueError("turns out of order")
        except (KeyError, TypeError, ValueError) as error:
            raise SessionFileError(f"{path}: its conversation is not readable ({error})") from None
        self.session, self.turns, self.template, self.system, self.seed = session, turns, template, system, seed

    def _way_back(self) -> Callable[[], None]:
        """What makes the conversation as it is now, when a turn is refused later."""
        session, turns = self.session, [replace(turn) for turn in self.turns]
        tokens, slide_points, slide_keep = list(session.tokens), list(session.slide_points), session.slide_keep

        def back() -> None:
            session.reset_to(tokens)
            session.plan_slide(slide_keep, slide_points)
            self.turns = turns

        return back

    def _say(self, text: str, attempt: int, back: Callable[[], None]) -> Iterator[Step]:
        try:
            turn = self._begin(text if self.template.name == "model" else text.rstrip(), attempt)
            self.answer = self._begin_answer(turn)
            return self._steps(turn, self.answer, back)
        except MlxgenError:
            back()
            raise

    def _begin(self, text: str, attempt: int) -> Turn:
        """Bring the context to the place where the answer begins."""
        session = self.session
        whole = self._written([*self.turns, text])
        rest = self._shorten(whole)
        if rest is None:
            self._write_anew()
            rest = self._shorten(whole)
        if rest is None:  # this template writes past turns in another way than new ones
            session.rewind(len(session.tokens))
            for turn in self.turns:
                turn.start = turn.processed = turn.first = 0
                turn.text = ""
            rest = whole
        mark = session.mark()
        ids = encode_prompt(session.model, rest)
        session.extend(ids if ids or session.tokens else [start_token(session.model)])
        index = len(self.turns)
        seed = self.seed if index == attempt == 0 else random.Random(f"{self.seed} {index} {attempt}").getrandbits(32)
        turn = Turn(text, mark.tokens, mark.processed, len(session.tokens), whole, seed, attempt)
        self.turns.append(turn)
        session.plan_slide(self._kept(), [turn.start for turn in self.turns if turn.start])
        return turn

    def _begin_answer(self, turn: Turn) -> Answer:
        stop = (*self.template.stop, *self.request.stop)
        return self.session.answer(replace(self.request, prompt=turn.user, stop=stop, seed=turn.seed))

    def _steps(self, turn: Turn, answer: Answer, back: Callable[[], None]) -> Iterator[Step]:
        try:
            for step in answer:
                turn.answer += step.text
                turn.finish_reason = step.finish_reason or turn.finish_reason
                yield step
            if turn.finish_reason == "interrupted":  # there was no room for a single step
                turn.finish_reason = "context"
        except MlxgenError:
            back()
            raise
        finally:
            answer.close()

    def _written(self, turns: Sequence[Turn | str], *, prompt: bool = True) -> str:
        """The conversation as text; a turn that is only text has no answer yet."""
        messages: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        for turn in turns:
            messages.append({"role": "user", "content": turn if isinstance(turn, str) else turn.user})
            if isinstance(turn, Turn):
                messages.append({"role": "assistant", "content": turn.answer})
        return self.template.write(messages, prompt)

    def _shorten(self, whole: str) -> str | None:
        """Take out what the context has beyond the whole text; returns the text still missing.

        A stop text that the model wrote itself often stands in the text as well: then its tokens stay. None: the
        context has another beginning.
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

    def _write_anew(self) -> None:
        """Tokenize every turn again, after the system text was changed; a beginning that still holds stays cached."""
        ids: list[int] = []
        encode, written = self.session.model.tokenizer.encode, ""
        for at, turn in enumerate(self.turns):
            text = self._written([*self.turns[:at], turn.user])
            if not text.startswith(written):
                break
            turn.start = turn.processed = len(ids)
            ids += encode(text[len(written) :])
            turn.first, turn.text = len(ids), text
            ids += encode(turn.answer)
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


def system_tokens(model: Model, template: Template, system: str) -> int:
    """How many tokens the system text takes at the beginning of a conversation."""
    if not system:
        return 0
    try:
        return len(model.tokenizer.encode(template.write([{"role": "system", "content": system}], False)))
    except TemplateError:  # a template may refuse a conversation without turns
        return 0
