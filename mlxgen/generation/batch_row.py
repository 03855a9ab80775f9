"""One request of a batch: its context, its rules, and what has been read of its answer."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mlxgen.errors import OptionError, check_whole
from mlxgen.generation.answer import MAX_TOKENS, SAMPLING, Options
from mlxgen.generation.loop import FinishReason, Reader
from mlxgen.generation.results import Generation, Recorder
from mlxgen.generation.session import Session
from mlxgen.sampling.chooser import Choice, Chooser
from mlxgen.sampling.samplers import Sampling


class Row:
    """An answer in the making: `choice` is its newest token, which the device works on and nobody has read.

    The session holds the context. Its cache is the row's own only until the row joins the others. Options are checked
    here: raises OptionError.
    """

    def __init__(
        self, session: Session, options: Options, seed: int, prompt: str | Sequence[int], index: int, sample: int
    ) -> None:
        model = session.model
        if unknown := set(options) - set(Options.__annotations__):
            raise OptionError(f"unknown option {min(unknown)!r}; the options are {', '.join(Options.__annotations__)}")
        max_tokens = options.get("max_tokens", MAX_TOKENS)
        check_whole("max_tokens", max_tokens, 1)
        self.index, self.sample, self.session = index, sample, session
        end_tokens = frozenset() if options.get("ignore_eos") else model.end_tokens
        self._reader = Reader(session, max_tokens, end_tokens, options.get("stop", ()))
        self.limit = self._reader.limit
        rules = {name: value for name, value in options.items() if name in SAMPLING}
        self._choose = Chooser(
            Sampling(**rules),  # type: ignore[arg-type]  # the names are its own
            seed,
            session.tokens,
            model.config.vocab_size,
            processors=options.get("logits_processors") or (),
            candidates=options.get("logprobs", 0),
        )
        self._recorder = Recorder(prompt, session.tokens, seed, alone=False)
        self.choice: Choice
        self.cache_length = 0  # positions in the cache when the choice was made

    @property
    def ends_next(self) -> bool:
        """Whether the unread choice is the last there can be."""
        return self._reader.ends_next

    def begin(self, session: Session, logits: mx.array) -> None:
        """Choose the first token after a session whose whole context is processed: logits [1, V]."""
        self.session = self._reader.session = session
        self.choose(logits, session.cache_length)
        mx.async_eval(*self.unread)

    def choose(self, logits: mx.array, cache_length: int) -> None:
        """Choose the next token from logits [1, V]: a graph, not yet a number."""
        self.choice, self.cache_length = self._choose(logits), cache_length

    @property
    def unread(self) -> list[mx.array]:
        """The arrays of the choice."""
        return [self.choice.token, self.choice.logprob, self.choice.finite, *self.choice.top]

    def read(self, choice: Choice, cache_length: int) -> FinishReason | None:
        """Wait for a choice and append it; returns why it was the last, or None. Raises NumericError."""
        step = self._reader.read(choice, cache_length)
        self._recorder.add(step)
        return step.finish_reason

    def slide(self) -> None:
        """With the position table full and the newest token read: rebuild a cache of its own, and choose from that."""
        session = self.session
        session.processed = len(session.tokens) - 1
        for layer in session.cache:
            layer.offset = session.model.config.n_positions  # the positions themselves were in the slots
        self.begin(session, session.prefill())

    def finish(self) -> Generation:
        return self._recorder.finish()
