"""The loop: prefill, then one step after another.

1. Context: the tokens so far. 2. Prefill processes the known prompt; its last position gives the first logits.
3. Sample chooses a token. 4. Append adds it to the text; it has no cache entries yet. 5. If generation goes on, that
one token goes through every layer, and the new logits choose the next. 6. Until an end token, a stop text, the token
limit or the context limit. So after a prompt of n tokens and m chosen ones the cache holds n + m - 1 positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import mlx.core as mx

from mlxgen.chooser import Choice, Chooser
from mlxgen.errors import NumericError
from mlxgen.session import Progress, Session
from mlxgen.stop import StopText
from mlxgen.tokenizer import Tokenizer

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
    finish_reason: why it was the last, or None.
    """

    index: int
    token: int
    text: str
    logprob: float
    candidates: tuple[Candidate, ...]
    context_length: int
    cache_length: int
    finish_reason: FinishReason | None


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
    def ends_next(self) -> bool:
        """Whether the next choice is the last there can be."""
        return self._count + 1 >= self.limit

    def read(self, choice: Choice, cache_length: int) -> Step:
        """Wait for a choice and append it to the session's tokens. Raises NumericError."""
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
        )


def steps(
    session: Session,
    choose: Chooser,
    *,
    max_tokens: int,
    end_tokens: frozenset[int] = frozenset(),
    stop: Sequence[str] = (),
    progress: Progress | None = None,
) -> Iterator[Step]:
    """Generate on a session whose context holds at least one token; no step at all if the context is full.

    While Python reads one token the device already works on the next. Wherever the caller stops, the session ends with
    every token appended and all but the newest processed. Raises NumericError for logits that are not finite.
    """
    reader = Reader(session, max_tokens, end_tokens, stop)
    if reader.limit < 1:
        return
    choice = choose(session.prefill(progress))
    mx.async_eval(choice.token, choice.logprob, choice.finite, *choice.top)
    while True:
        cache_length = session.cache_length
        following = None
        if not reader.ends_next and not session.table_is_full:  # a slide waits until it is known to be needed
            following = _next_choice(session, choose, choice)
        reason: FinishReason | None = None
        try:
            step = reader.read(choice, cache_length)
            reason = step.finish_reason
            yield step
        except BaseException:
            reason = "stop"  # the caller left, or failed: nothing more is wanted
            raise
        finally:
            if reason and following is not None:
                session.take_back()
        if reason:
            return
        choice = following or _next_choice(session, choose, choice)


def _next_choice(session: Session, choose: Chooser, choice: Choice) -> Choice:
    """Send the chosen token, which nobody has read yet, through the network, and choose again."""
    logits = session.process(choice.token)
    try:
        following = choose(logits)
        mx.async_eval(following.token, following.logprob, following.finite, *following.top)
    except BaseException:  # a caller's processor failed, or Ctrl-C
        session.take_back()
        raise
    return following


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
