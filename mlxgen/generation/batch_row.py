"""One row of a batch: an answer that shares its passes through the network with other rows."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mlxgen.generation.context import Context
from mlxgen.generation.loop import Reader
from mlxgen.generation.request import Request
from mlxgen.generation.results import FinishReason, Generation, Recorder
from mlxgen.sampling.chooser import Choice, Chooser


class BatchRow:
    """A row and its newest choice: `choice` has been sent to the device and not been read yet.

    context: holds the prompt, and the row's cache until the row joins the batch. index, sample: see BatchGeneration.
    Raises OptionError.
    """

    def __init__(self, context: Context, request: Request, index: int, sample: int) -> None:
        self.index, self.sample, self.context = index, sample, context
        self._reader = Reader(context, request)
        self.limit = self._reader.limit
        self._choose = Chooser(
            request.sampling,
            request.seed,
            context.tokens,
            context.model.config.vocab_size,
            processors=request.logits_processors,
            candidates=request.logprobs,
        )
        self._recorder = Recorder(request, context.tokens, alone=False)
        self.choice: Choice
        self.cache_length = 0  # positions in the cache when the choice was made

    @property
    def ends_next(self) -> bool:
        """Whether the unread choice is the last that the limits allow."""
        return self._reader.ends_next

    def begin(self, logits: mx.array) -> None:
        """Choose the next token when the whole context has been processed. logits: the last position's, [1, V]."""
        self.choose(logits, self.context.cache_length)
        mx.async_eval(*self.unread)

    def choose(self, logits: mx.array, cache_length: int) -> None:
        """Choose the next token from logits [1, V], without evaluating it."""
        self.choice, self.cache_length = self._choose(logits), cache_length

    @property
    def unread(self) -> list[mx.array]:
        """The arrays to evaluate with the choice."""
        return [*self.choice.arrays, *self._choose.state]

    def read(self, choice: Choice, cache_length: int) -> FinishReason | None:
        """Wait for a choice and append its token; returns the finish reason, or None. Raises NumericError."""
        step = self._reader.read(choice, cache_length)
        self._recorder.add(step)
        return step.finish_reason

    def join(self) -> list[Any]:
        """Hand over the row's cache to the batch."""
        return self.context.give_cache_away()

    def slide(self) -> None:
        """Slide when the position table is full: rebuild a cache for this row alone, and choose the next token."""
        self.begin(self.context.prefill_after_full_table())

    def finish(self) -> Generation:
        """The record of the answer."""
        return self._recorder.record()
