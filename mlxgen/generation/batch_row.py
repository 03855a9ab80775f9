"""One row of a batch: an answer that shares its passes through the network with others."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mlxgen.generation.context import Context
from mlxgen.generation.loop import Reader
from mlxgen.generation.request import Request
from mlxgen.generation.results import FinishReason, Generation, Recorder
from mlxgen.sampling.chooser import Choice, Chooser


class BatchRow:
    """`choice` is the row's newest token, which the device works on and nobody has read.

    context: holds the prompt; its cache is the row's own only until the row joins the others. index, sample: see
    BatchGeneration. Raises OptionError.
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
        """Whether the unread choice is the last there can be."""
        return self._reader.ends_next

    def begin(self, logits: mx.array) -> None:
        """Choose the first token, the whole context being processed: logits [1, V]."""
        self.choose(logits, self.context.cache_length)
        mx.async_eval(*self.unread)

    def choose(self, logits: mx.array, cache_length: int) -> None:
        """Choose the next token from logits [1, V]: a graph, not yet a number."""
        self.choice, self.cache_length = self._choose(logits), cache_length

    @property
    def unread(self) -> list[mx.array]:
        """The arrays to evaluate with the choice."""
        return [*self.choice.arrays, *self._choose.state]

    def read(self, choice: Choice, cache_length: int) -> FinishReason | None:
        """Wait for a choice and append it; returns why it was the last, or None. Raises NumericError."""
        step = self._reader.read(choice, cache_length)
        self._recorder.add(step)
        return step.finish_reason

    def join(self) -> list[Any]:
        """Give the row's cache to the batch."""
        return self.context.give_cache_away()

    def slide(self) -> None:
        """With the position table full and the newest token read: rebuild a cache of its own, and choose from that."""
        self.begin(self.context.prefill_after_full_table())

    def finish(self) -> Generation:
        return self._recorder.record()
