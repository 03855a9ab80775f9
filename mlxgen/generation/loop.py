"""The generation loop: prefill, then one step after another.

1. Context: the tokens so far.
2. Prefill processes the prompt. Its last position gives the first logits.
3. Sample chooses a token from the logits.
4. Append adds the token to the text. It has no cache entries yet.
5. If generation continues, that one token goes through every layer. Its logits are the next ones to sample from.
6. Repeat from 3 until an end token, a stop text, the token limit or the context limit.
So after a prompt of n tokens and m chosen tokens the cache holds n + m - 1 positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import mlx.core as mx

from mlxgen import device
from mlxgen.errors import NumericError, OptionError
from mlxgen.generation.cached_context import CachedContext
from mlxgen.generation.request import Request
from mlxgen.generation.results import Candidate, FinishReason, Step
from mlxgen.sampling.chooser import Choice, Chooser, ChosenToken, Guess
from mlxgen.text.stop_text import StopText
from mlxgen.text.tokenizer import Tokenizer

CLEAR_EVERY = 256  # passes between releases of the buffers that MLX keeps for reuse


class Reader:
    """Turns the choices of a request into steps and decides when it ends. limit: the maximum number of tokens."""

    def __init__(self, context: CachedContext, request: Request) -> None:
        self._context, self._max_tokens = context, request.max_tokens
        self._adjusting = request.adjusting
        self._end_tokens = request.end_tokens(context.model)
        self.limit = request.max_tokens if context.room is None else min(request.max_tokens, context.room)
        self._text, self._stops = context.model.tokenizer.stream(context.tokens), StopText(request.stop)
        self._count = 0  # tokens read so far

    @property
    def left(self) -> int:
        """How many more choices the limits allow."""
        return self.limit - self._count

    @property
    def ends_next(self) -> bool:
        """Whether the next choice is the last that the limits allow."""
        return self.left <= 1

    def read(self, chosen: ChosenToken, cache_length: int, guess: Guess | None = None, guesses: int = 0) -> Step:
        """Append a chosen token to the context. Raises NumericError.

        guess: the guess at this choice, if there was one. guesses: see Step.
        """
        index, last, stops = self._count, self.ends_next, self._stops
        check_finite(chosen.finite, chosen.from_model, index, self._adjusting)
        token = chosen.token
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
            logprob=chosen.logprob,
            candidates=_candidates(chosen, self._context.model.tokenizer),
            context_length=len(self._context.tokens),
            cache_length=cache_length,
            finish_reason=reason,
            guessed=guess is not None and token == guess.token.item(),
            guesses=guesses,
        )


class Guesser(Protocol):
    """Guesses the next tokens, so that one pass through the network can check several of them."""

    def guess(self, token: mx.array, known: bool, most: int, choose: Chooser) -> list[Guess]:
        """Guess the tokens that follow the newest token, in order, `most` at most.

        token: the newest token's id [1]. known: whether it has been read, and so is the last token of the context.
        choose: the chooser of the tokens after it.
        """

    def learn(self, guesses: int, right: int) -> None:
        """Take note of how many of the newest guesses were right, counted up to the first wrong one."""


def steps(context: CachedContext, request: Request, choose: Chooser, guesser: Guesser | None = None) -> Iterator[Step]:
    """Generate from a context that holds at least one token. Yields no step if the context is full.

    The device works on the next token while Python reads the one before. Wherever the caller stops, every token has
    been appended to the context and all but the newest have been processed. Raises NumericError for logits that are not
    finite, and OptionError if the context was extended, rewound or used for another answer in the meantime.

    guesser: its guesses go through the network together with the newest token. A token is chosen from each position's
    logits as usual. While it equals the guess, the next position's logits are those of the real context. So the tokens
    are the same as without a guesser; if guesses are drawn at random, the distribution is the same.
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
                        "the session was used for something else after this answer began; start a new answer"
                    )
    finally:
        if context.is_under_way(answer):
            context.end_answer()


def _steps(
    context: CachedContext, request: Request, choose: Chooser, reader: Reader, guesser: Guesser | None
) -> Iterator[Step]:
    largest_cache = context.options.max_kv_size or context.model.config.n_positions
    passes = 0
    choice, known = _choose(choose, context.prefill(request.progress), []), False  # known: the choice has been read
    while True:
        cache_length, following = context.cache_length, None
        guesses: list[Guess] = []
        room = reader.left - (not known)  # how many tokens may follow the choice
        if room and (known or context.positions_left):  # do not slide before the choice shows that there is a next step
            most = min(context.guessable, room - 1)
            if guesser and most > 0:
                guesses = guesser.guess(choice.token, known, most, choose)
            logits = context.process(mx.concatenate([choice.token, *(guess.token for guess in guesses)]))
            passes += 1
            if passes % CLEAR_EVERY == 0:
                mx.clear_cache()
            following = _choose(choose, logits[:1], guesses[:1])
        if not known:
            step = reader.read(choice.read()[0], cache_length)
            yield step
            if step.finish_reason:
                return
        if following is None:
            known = True
            continue
        choice, known, right = following, False, 0
        for n, guess in enumerate(guesses, 1):
            step = reader.read(
                choice.read()[0], min(cache_length + n, largest_cache), guess, len(guesses) if n == 1 else 0
            )
            yield step
            if step.finish_reason:
                return
            known = not step.guessed
            if known:
                break
            choice = _choose(choose, logits[n : n + 1], guesses[n : n + 1])
            right = n
        if known:  # drop the wrong guess and those after it
            context.drop_ahead()
        if guesser and guesses:
            guesser.learn(len(guesses), right)


def _choose(choose: Chooser, logits: mx.array, guess: list[Guess]) -> Choice:
    """Choose from logits [1, V] and send the work to the device. guess: the guess at this choice, or empty."""
    choice = choose(logits, *guess)
    mx.async_eval(*choice.arrays, *choose.state)
    return choice


def check_finite(finite: bool, from_model: bool, index: int, adjusting: Sequence[str]) -> None:
    """Raise NumericError if the logits of a step were not finite, or the options named `adjusting` left no token.

    from_model: whether the model's own logits are finite.
    """
    if finite:
        return
    if from_model:
        raise NumericError(
            f"step {index}: {' and '.join(adjusting)} removed every token, or made a logit NaN or +inf;"
            " they must leave at least one finite logit"
        )
    raise NumericError(
        f"step {index}: the logits are not finite (NaN or infinite): the weights are damaged, or their type"
        " overflows; check the checkpoint, or convert it with --dtype float32"
    )


def _candidates(chosen: ChosenToken, tokenizer: Tokenizer) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(token, tokenizer.decode([token]), math.exp(logprob), probability)
        for token, logprob, probability in chosen.top
    )
