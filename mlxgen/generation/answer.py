"""An answer: the steps of one request as they come, and their record. generate() and stream()."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Self, Unpack

from mlxgen.errors import OptionError
from mlxgen.generation.context import Context
from mlxgen.generation.draft import Draft
from mlxgen.generation.lookahead import NGrams
from mlxgen.generation.loop import Guesser, steps
from mlxgen.generation.observer import Observer
from mlxgen.generation.request import Options, Request, check_options
from mlxgen.generation.results import Generation, Recorder, Step
from mlxgen.model import Model
from mlxgen.sampling.chooser import Chooser


class Answer(Iterator[Step]):
    """Iterate over it for the steps; `generation` is the record of those so far.

    context: holds the prompt already. Nothing is computed before the first step. Raises OptionError for a request that
    the model or the context cannot take.
    """

    def __init__(self, context: Context, request: Request, observer: Observer | None = None) -> None:
        self.request = request
        choose = Chooser(
            request.sampling,
            request.seed,
            context.tokens,
            context.model.config.vocab_size,
            processors=request.logits_processors,
            candidates=request.logprobs,
            watch=partial(observer.after_choice, context) if observer else None,
        )
        guesser = _guesser(context, request)
        self._recorder = Recorder(request, context.tokens[context.processed :])
        self._steps = steps(context, request, choose, guesser)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Step:
        step = next(self._steps)
        self._recorder.add(step)
        return step

    def close(self) -> None:
        """End the answer here. The context keeps every token that was given out."""
        self._steps.close()  # type: ignore[attr-defined]  # a generator

    @property
    def generation(self) -> Generation:
        """The record of the whole answer or, where it was broken off, of what there is."""
        return self._recorder.record()

    def finish(self) -> Generation:
        """Run to the end; returns the record."""
        for _ in self:
            pass
        return self.generation


def answer(model: Model, request: Request, observer: Observer | None = None) -> Answer:
    """Answer a request that has its prompt, on a context of its own. Raises OptionError and ContextError."""
    context = Context(model, request.context, observer=observer)
    context.extend(request.ids)
    return Answer(context, request, observer)


def stream(model: Model, prompt: str | Sequence[int] = "", **options: Unpack[Options]) -> Answer:
    """Generate a token at a time. The prompt is text or token ids; see Options for the keyword arguments.

    Iterate over the result for the steps; its `generation` is the record of what was generated so far. Invalid options
    raise OptionError, and a prompt that does not fit raises ContextError, here and not at the first step.
    """
    return answer(model, check_options(**options).with_prompt(model, prompt))


def generate(model: Model, prompt: str | Sequence[int] = "", **options: Unpack[Options]) -> Generation:
    """Generate a whole answer: as stream(), in one record."""
    return stream(model, prompt, **options).finish()


def _guesser(context: Context, request: Request) -> Guesser | None:
    """What guesses for this answer, if anything. Raises OptionError."""
    if not request.guesses:
        return None
    if not context.has_own_cache:
        raise OptionError("lookahead and draft need the session's own cache: leave out cache=")
    return NGrams(context.tokens) if request.draft is None else Draft(context, request.draft)
