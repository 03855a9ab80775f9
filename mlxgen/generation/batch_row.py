"""One row of a batch: an answer that shares its passes through the network with other rows."""

from __future__ import annotations

from mlxgen.generation.context import Context
from mlxgen.generation.loop import Reader
from mlxgen.generation.request import Request
from mlxgen.generation.results import FinishReason, Generation, Recorder
from mlxgen.sampling.chooser import Choice, Chooser, ChosenToken


class BatchRow:
    """A request, its context, and its newest choice, which has not been read yet.

    context: holds the prompt. index, sample: see BatchGeneration. has_more_samples: whether the next row is another
    answer to the same prompt. Raises OptionError.
    """

    def __init__(
        self, context: Context, request: Request, index: int, sample: int, *, has_more_samples: bool = False
    ) -> None:
        self.index, self.sample, self.context, self.has_more_samples = index, sample, context, has_more_samples
        self._reader = Reader(context, request)
        self.limit = self._reader.limit
        self.choose = Chooser(  # until the row joins others with the same rules
            request.sampling,
            request.seed,
            context.tokens,
            context.model.config.vocab_size,
            bans=request.bans(context.model),
            processors=request.logits_processors,
            candidates=request.logprobs,
        )
        self._recorder = Recorder(request, context.tokens, alone=False)
        self.choice: Choice  # of this row and those that it shares its rules with
        self.at = 0  # this row's index in the choice
        self.cache_length = 0  # positions in the cache when the choice was made

    @property
    def ends_next(self) -> bool:
        """Whether the unread choice is the last that the limits allow."""
        return self._reader.ends_next

    def set_choice(self, choice: Choice, at: int, cache_length: int) -> None:
        """Note the row's newest choice, without reading it."""
        self.choice, self.at, self.cache_length = choice, at, cache_length

    def read(self, chosen: ChosenToken, cache_length: int) -> FinishReason | None:
        """Append a token that was read; returns the finish reason, or None. Raises NumericError."""
        step = self._reader.read(chosen, cache_length)
        self._recorder.add(step)
        return step.finish_reason

    def finish(self) -> Generation:
        """The record of the answer."""
        return self._recorder.record()
