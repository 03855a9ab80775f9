"""The loop: prefill, then one step after another.

1. Context: the tokens so far. 2. Prefill processes the known prompt; its last position gives the first logits.
3. Sample chooses a token. 4. Append adds it to the text; it has no cache entries yet. 5. If generation goes on, that
one token goes through every layer, and the new logits choose the next. 6. Until an end token, a stop text, the token
limit or the context limit. So after a prompt of n tokens and m chosen ones the cache holds n + m - 1 positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast

import mlx.core as mx

from mlxgen import device
from mlxgen.errors import NumericError, OptionError
from mlxgen.generation.context import Progress
from mlxgen.generation.session import Session
from mlxgen.sampling.chooser import Choice, Chooser, Guess
from mlxgen.text.stop_text import StopText
from mlxgen.text.tokenizer import Tokenizer

CLEAR_EVERY = 256  # passes, after which buffers that MLX keeps for the next use are given back

FinishReason = Literal["stop", "length", "context"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that could have been chosen.

    probability is the model's; rule_probability is what the sampling rules made of it, 0 where they cut it.
    """

    token: int
    text: str
    probability: float
    rule_probability: float

    @property
    def kept(self) -> bool:
        return self.rule_probability > 0


@dataclass(frozen=True, slots=True)
class Step:
    """One chosen token.

    text: what became certain with it; empty while a character or a possible stop text is incomplete, and for the end
    token. logprob: natural log of the token's probability under the model itself. context_length: tokens in the
    context, this one included. cache_length: positions in the cache, one fewer until the cache rotates or slides.
    finish_reason: why it was the last, or None. guessed: whether it was guessed, and so needed no pass of its own.
    guesses: how many guesses a pass checked, told with the first token that one was made for.
    """

    index: int
    token: int
    text: str
    logprob: float
    candidates: tuple[Candidate, ...]
    context_length: int
    cache_length: int
    finish_reason: FinishReason | None
    guessed: bool = False
    guesses: int = 0


class Reader:
    """Reads a request's choices, one after another, and says when it ends. limit: the most tokens there can be."""

    def __init__(
        self, session: Session, max_tokens: int, end_tokens: frozenset[int], stop: str | Sequence[str]
    ) -> None:
        self.session, self._max_tokens, self._end_tokens = session, max_tokens, end_tokens
        self.limit = max_tokens if session.room is None else min(max_tokens, session.room)
        self._text, self._stops = session.model.tokenizer.stream(session.tokens), StopText(stop)
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
        """Wait for a choice and append it to the session's tokens. Raises NumericError.

        guess: what was guessed to be chosen. guesses: see Step.
        """
        index, last, stops = self._count, self.ends_next, self._stops
        token = _read(choice, index)
        self._count += 1
        self.session.tokens.append(token)
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
            candidates=_candidates(choice, self.session.model.tokenizer),
            context_length=len(self.session.tokens),
            cache_length=cache_length,
            finish_reason=reason,
            guessed=guess is not None and token == guess.token.item(),
            guesses=guesses,
        )


class Guesser(Protocol):
    """Says what may come next, so that one pass through the network can check several tokens."""

    def guess(self, token: mx.array, known: bool, most: int, choose: Chooser) -> list[Guess]:
        """What may follow the newest token, one after another, at most `most`.

        token: its id [1]. known: whether it was read, and so is the last of the session's tokens. choose: what will
        choose the tokens after it.
        """

    def learn(self, guesses: int, right: int) -> None:
        """How many of the newest guesses were right, before the first wrong one."""


def steps(
    session: Session,
    choose: Chooser,
    *,
    max_tokens: int,
    end_tokens: frozenset[int] = frozenset(),
    stop: Sequence[str] = (),
    progress: Progress | None = None,
    guesser: Guesser | None = None,
) -> Iterator[Step]:
    """Generate on a session whose context holds at least one token; no step at all if the context is full.

    While Python reads one token the device already works on the next. Wherever the caller stops, the session ends with
    every token appended and all but the newest processed. Raises NumericError for logits that are not finite, and
    OptionError when the session was added to, taken back or asked for another answer meanwhile.

    guesser: its guesses go through the network together with the newest token. Each position's logits choose as they
    always do, and as long as the guess is what was chosen, the next position's logits are those of the real context.
    So the tokens are the same as without it; where guesses are drawn at random, their distribution is.
    """
    reader = Reader(session, max_tokens, end_tokens, stop)
    if reader.limit < 1:
        return
    answer = session.begin_answer()
    try:
        with device.wired_memory():
            for step in _steps(session, choose, reader, progress, guesser):
                yield step
                if step.finish_reason is None and not session.is_under_way(answer):
                    raise OptionError(
                        "the session has been used for something else since this answer began; begin a new one"
                    )
    finally:
        if session.is_under_way(answer):
            session.settle()


def _steps(
    session: Session, choose: Chooser, reader: Reader, progress: Progress | None, guesser: Guesser | None
) -> Iterator[Step]:
    """The steps themselves, the session's `surplus` being right at each of them."""
    most_held = session.max_kv_size or session.model.config.n_positions
    passes = 0
    choice, known = _choose(choose, session.prefill(progress), []), False
    while True:
        held, following = session.cache_length, None
        guesses: list[Guess] = []
        room = reader.left - (not known)  # how many tokens may come after the choice
        if room and (known or not session.table_is_full):  # a slide waits until it is known to be needed
            most = min(session.guessable, room - 1)
            if guesser and most > 0:
                guesses = guesser.guess(choice.token, known, most, choose)
            logits = session.process(mx.concatenate([choice.token, *(guess.token for guess in guesses)]))
            session.surplus = 1 + len(guesses)
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
            session.surplus -= 1
            yield step
            if step.finish_reason:
                return
            known = not step.guessed
            if known:
                break
            choice = _choose(choose, logits[n : n + 1], guesses[n : n + 1])
            right = n
        if known:  # the wrong guess and those after it
            session.take_back(session.surplus)
        session.surplus = 0
        if guesser and guesses:
            guesser.learn(len(guesses), right)


def _choose(choose: Chooser, logits: mx.array, guess: list[Guess]) -> Choice:
    """Choose from logits [1, V], with the guess of what is chosen if there is one, and send the work to the device."""
    choice = choose(logits, *guess)
    mx.async_eval(choice.token, choice.logprob, choice.finite, *choice.top)
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
