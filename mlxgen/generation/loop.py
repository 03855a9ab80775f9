"""The loop: prefill, then one step after another.

1. Context: the tokens so far. 2. Prefill processes the known prompt; its last position gives the first logits.
3. Sample chooses a token. 4. Append adds it to the text; it has no cache entries yet. 5. If generation goes on, that
one token goes through every layer, and the new logits choose the next. 6. Until an end token, a stop text, the token
limit or the context limit. So after a prompt of n tokens and m chosen ones the cache holds n + m - 1 positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, cast

import mlx.core as mx

from mlxgen import device
from mlxgen.errors import NumericError, OptionError
from mlxgen.generation.cached_context import CachedContext
from mlxgen.generation.request import Request
from mlxgen.generation.results import Candidate, FinishReason, Step
from mlxgen.sampling.chooser import Choice, Chooser, Guess
from mlxgen.text.stop_text import StopText
from mlxgen.text.tokenizer import Tokenizer

CLEAR_EVERY = 256  # passes, after which buffers that MLX keeps for the next use are given back


class Reader:
    """Reads a request's choices, one after another, and says when it ends. limit: the most tokens there can be."""

    def __init__(self, context: CachedContext, request: Request) -> None:
        self._context, self._max_tokens = context, request.max_tokens
        self._end_tokens = request.end_tokens(context.model)
        self.limit = request.max_tokens if context.room is None else min(request.max_tokens, context.room)
        self._text, self._stops = context.model.tokenizer.stream(context.tokens), StopText(request.stop)
        self._count = 0  # tokens read so far

    @property
    def left(self) -> int:
        """How many more choices there can be."""
        return self.limit - self._count

    @property
    def ends_next(self) -> bool:
        """Whether the next choice is the last there can be."""
        return self.left <= 1

    def read(self, choice: Choice, cache_length: int, guess: Guess | None = None, guesses: int = 0) -> Step:
        """Wait for a choice and append it to the context's tokens. Raises NumericError.

        guess: what was guessed to be chosen. guesses: see Step.
        """
        index, last, stops = self._count, self.ends_next, self._stops
        token = _read(choice, index)
        self._count += 1
        self._context.accept(token)
        ended = token in self._end_tokens
        shown = "" if ended else stops.feed(self._text.add(token))
        reason: FinishReason | None = None
        if ended or stops.hit:
            reason = "stop"
        elif last:
            reason = "length" if self._count == self._max_tokens else "context"
        if reason and not stops.hit:
            shown += stops.feed(self._text.flush()) + stops.flush()
        return Step(
            index=index,
            token=token,
            text=shown,
            logprob=cast(float, choice.logprob.item()),
            candidates=_candidates(choice, self._context.model.tokenizer),
            context_length=len(self._context.tokens),
            cache_length=cache_length,
            finish_reason=reason,
            guessed=guess is not None and token == guess.token.item(),
            guesses=guesses,
        )


class Guesser(Protocol):
    """Says what may come next, so that one pass through the network can check several tokens."""

    def guess(self, token: mx.array, known: bool, most: int, choose: Chooser) -> list[Guess]:
        """What may follow the newest token, one after another, at most `most`.

        token: its id [1]. known: whether it was read, and so is the last of the context's tokens. choose: what will
        choose the tokens after it.
        """

    def learn(self, guesses: int, right: int) -> None:
        """How many of the newest guesses were right, before the first wrong one."""


def steps(context: CachedContext, request: Request, choose: Chooser, guesser: Guesser | None = None) -> Iterator[Step]:
    """Generate on a context that holds at least one token; no step at all if it is full.

    While Python reads one token the device already works on the next. Wherever the caller stops, the context ends with
    every token appended and all but the newest processed. Raises NumericError for logits that are not finite, and
    OptionError when the context was added to, taken back or asked for another answer meanwhile.

    guesser: its guesses go through the network together with the newest token. Each position's logits choose as they
    always do, and as long as the guess is what was chosen, the next position's logits are those of the real context.
    So the tokens are the same as without it; where guesses are drawn at random, their distribution is.
    """
    reader = Reader(context, request)
    if reader.limit < 1:
        return
    answer = context.begin_answer()
    try:
        with device.wired_memory():
            for step in _steps(context, request, choose, reader, guesser):
                yield step
                if step.finish_reason is None and not context.is_under_way(answer):
                    raise OptionError(
                        "the session has been used for something else since this answer began; begin a new one"
                    )
    finally:
        if context.is_under_way(answer):
            context.end_answer()


def _steps(
    context: CachedContext, request: Request, choose: Chooser, reader: Reader, guesser: Guesser | None
) -> Iterator[Step]:
    most_held = context.options.max_kv_size or context.model.config.n_positions
    passes = 0
    choice, known = _choose(choose, context.prefill(request.progress), []), False
    while True:
        held, following = context.cache_length, None
        guesses: list[Guess] = []
        room = reader.left - (not known)  # how many tokens may come after the choice
        if room and (known or context.positions_left):  # a slide waits until it is known to be needed
            most = min(context.guessable, room - 1)
            if guesser and most > 0:
                guesses = guesser.guess(choice.token, known, most, choose)
            logits = context.process(mx.concatenate([choice.token, *(guess.token for guess in guesses)]))
            passes += 1
            if passes % CLEAR_EVERY == 0:
                mx.clear_cache()
            following = _choose(choose, logits[:1], guesses[:1])
        if not known:
            step = reader.read(choice, held)
            yield step
            if step.finish_reason:
                return
        if following is None:
            known = True
            continue
        choice, known, right = following, False, 0
        for n, guess in enumerate(guesses, 1):
            step = reader.read(choice, min(held + n, most_held), guess, len(guesses) if n == 1 else 0)
            yield step
            if step.finish_reason:
                return
            known = not step.guessed
            if known:
                break
            choice = _choose(choose, logits[n : n + 1], guesses[n : n + 1])
            right = n
        if known:  # the wrong guess and those after it
            context.take_back_ahead()
        if guesser and guesses:
            guesser.learn(len(guesses), right)


def _choose(choose: Chooser, logits: mx.array, guess: list[Guess]) -> Choice:
    """Choose from logits [1, V], with the guess of what is chosen if there is one, and send the work to the device."""
    choice = choose(logits, *guess)
    mx.async_eval(*choice.arrays, *choose.state)
    return choice


def _read(choice: Choice, index: int) -> int:
    """Wait for the chosen token."""
    if not choice.finite.item():
        if choice.from_model.item():
            raise NumericError(
                f"step {index}: the logits processors or logit_bias left no token, or made a logit NaN or +inf;"
                " let them leave at least one finite logit"
            )
        raise NumericError(
            f"step {index}: the logits are not finite (NaN or infinite): the weights are damaged, or their type"
            " overflows; check the checkpoint, or convert it with --dtype float32"
        )
    return cast(int, choice.token.item())


def _candidates(choice: Choice, tokenizer: Tokenizer) -> tuple[Candidate, ...]:
    if not choice.top:
        return ()
    ids, logprobs, ruled = choice.top
    rows = zip(*(cast(list[float], column.tolist()) for column in (ids, mx.exp(logprobs), ruled)), strict=True)
    return tuple(Candidate(int(token), tokenizer.decode([int(token)]), p, rule_p) for token, p, rule_p in rows)
