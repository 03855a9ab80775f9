"""Scoring: how likely a given text is under a model (teacher forcing).

The text is known, so one pass computes the logits of all positions in parallel. Each token is then looked up in the
distribution predicted at the position before it. Nothing is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import mlx.core as mx

from mlxgen.errors import NumericError, OptionError, shown
from mlxgen.forked_process import check_process
from mlxgen.generation.request import Progress
from mlxgen.model import Model, encode_prompt, start_tokens
from mlxgen.sampling.softmax import log_softmax
from mlxgen.text.excerpt import excerpt

HEAD_CHUNK = 256  # positions whose logits are in memory at a time: 50 MB for GPT-2's vocabulary in float32

NOT_FINITE = (
    "the logits are not finite (NaN or infinite): the weights are damaged, or their type overflows; check the"
    " checkpoint, or convert it with --dtype float32"
)


@dataclass(frozen=True, slots=True)
class ScoreTotal:
    """How likely texts are together. Averages are over all their tokens or bytes, not over the averages of the texts.

    texts: how many there are. n_scored: how many of their tokens have a log-probability. n_bytes: UTF-8 length of
    these. total: log-probability of all texts, in nats.
    """

    texts: int
    n_scored: int
    n_bytes: int
    total: float

    @property
    def loss(self) -> float:
        """Cross-entropy: nats per scored token. NaN for none."""
        return -self.total / self.n_scored if self.n_scored else math.nan

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite if that is too large for a float."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf

    @property
    def bits_per_byte(self) -> float:
        """Bits per scored byte, comparable between models with different vocabularies. Infinite for no bytes."""
        return -self.total / math.log(2) / self.n_bytes if self.n_bytes else math.inf


@dataclass(frozen=True, slots=True)
class Score:
    """How likely a text is under the model.

    tokens: the ids of the text, without the context and the start token. logprobs: each token's log-probability
    (natural logarithm). ranks: 1 if the token was the model's most probable one; ties go to the lower id. Both are None
    for a token with no token before it in its window: the first token if there is no start token, and the first of each
    window if the stride is a whole window. n_bytes: UTF-8 length of the scored tokens; a token that is a part of a
    character counts its own bytes.
    """

    text: str
    tokens: list[int] = field(repr=False)
    logprobs: list[float | None] = field(repr=False)
    ranks: list[int | None] = field(repr=False)
    n_bytes: int

    def __repr__(self) -> str:
        known = f"loss={self.loss:.4f}, perplexity={self.perplexity:.4g}, " if self.n_scored else ""
        return f"Score({excerpt(self.text)}, {known}tokens={len(self.tokens)})"

    @property
    def n_scored(self) -> int:
        """How many tokens have a log-probability."""
        return sum(logprob is not None for logprob in self.logprobs)

    @property
    def total(self) -> float:
        """Log-probability of the text, in nats."""
        return math.fsum(logprob for logprob in self.logprobs if logprob is not None)

    @property
    def sums(self) -> ScoreTotal:
        """The text alone, as a total."""
        return ScoreTotal(1, self.n_scored, self.n_bytes, self.total)

    @property
    def loss(self) -> float:
        """Cross-entropy: nats per scored token."""
        return self.sums.loss

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite if that is too large for a float."""
        return self.sums.perplexity

    @property
    def bits_per_byte(self) -> float:
        """Bits per scored byte, comparable between models with different vocabularies. Infinite for no bytes."""
        return self.sums.bits_per_byte


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens that are processed together: from `begin` up to `end`. Those from `first` on are scored."""

    begin: int
    end: int
    first: int


def windows(n: int, size: int, stride: int) -> Iterator[Window]:
    """Windows of at most `size` tokens over n tokens, each `stride` after the one before.

    Each token is scored once, in the first window that contains it, as in transformers' perplexity guide.
    """
    done = 0
    for begin in range(0, n, stride):
        end = min(begin + size, n)
        yield Window(begin, end, done)
        done = end
        if end == n:
            return


def score(
    model: Model,
    text: str | Sequence[int],
    *,
    context: str | Sequence[int] = "",
    stride: int | None = None,
    bos: bool = True,
    progress: Progress | None = None,
) -> Score:
    """Score a text or token ids: compute each token's log-probability and rank, given all tokens before it.

    context: text or ids before the text; it is tokenized separately and not scored. bos: without a context, condition
    the first token on the model's start token (GPT-2's end token); False leaves the first token unscored.
    stride: a text longer than the position table is read in windows of the table's length, each `stride` tokens after
    the one before (from 1 to the table's length, by default half of it). A smaller stride gives each token more context
    and takes longer. progress is called with (tokens done, total tokens).
    Raises OptionError for invalid options, ids outside the vocabulary and text without a token to score, and
    NumericError for logits that are not finite.
    """
    check_process()
    stride = checked_stride(model, stride)
    tokens, before = encode_prompt(model, text), context_tokens(model, context, bos=bos)
    if not tokens:
        raise OptionError("there is nothing to score: the text is empty")
    if len(before) + len(tokens) < 2:
        raise OptionError(
            "a single token cannot be scored without a token before it; give a context, or use the start token"
        )
    logprobs, ranks = _score_tokens(model, before + tokens, len(before), stride, progress)
    return make_score(model, text, tokens, logprobs, ranks)


def checked_stride(model: Model, stride: int | None) -> int:
    """The stride, or half the position table for None. Raises OptionError if the table does not have that many."""
    size = model.config.n_positions
    if stride is None:
        return max(size // 2, 1)
    if isinstance(stride, bool) or not isinstance(stride, int) or not 1 <= stride <= size:
        raise OptionError(f"stride must be a whole number from 1 to the model's {size} positions, not {shown(stride)}")
    return stride


def context_tokens(model: Model, context: str | Sequence[int], *, bos: bool) -> list[int]:
    """What the first scored token follows: the context, or without one the start token if `bos`. Raises OptionError."""
    before = encode_prompt(model, context, begins=bos)
    return before or (_start(model) if bos else [])


def make_score(
    model: Model, text: str | Sequence[int], tokens: list[int], logprobs: list[float | None], ranks: list[int | None]
) -> Score:
    """The score of a text, given as text or ids, whose tokens have been looked up."""
    written = text if isinstance(text, str) else model.tokenizer.decode(tokens)
    if isinstance(text, str) and None not in logprobs:
        n_bytes = len(text.encode())
    else:
        scored = (token for token, logprob in zip(tokens, logprobs, strict=True) if logprob is not None)
        n_bytes = sum(map(model.tokenizer.token_bytes, scored))
    return Score(written, tokens, logprobs, ranks, n_bytes)


def sum_scores(scores: Iterable[Score | ScoreTotal]) -> ScoreTotal:
    """The total of several texts: `loss`, `perplexity` and `bits_per_byte` over all their tokens."""
    parts = [part.sums if isinstance(part, Score) else part for part in scores]
    return ScoreTotal(
        texts=sum(part.texts for part in parts),
        n_scored=sum(part.n_scored for part in parts),
        n_bytes=sum(part.n_bytes for part in parts),
        total=math.fsum(part.total for part in parts),
    )


def _start(model: Model) -> list[int]:
    try:
        return start_tokens(model)
    except OptionError:
        raise OptionError(
            "the model has no start or end token to put before the first token; score without one"
            " (bos=False, in the terminal --no-bos) or give a context"
        ) from None


def _score_tokens(
    model: Model, tokens: list[int], skip: int, stride: int, progress: Progress | None
) -> tuple[list[float | None], list[int | None]]:
    """The log-probabilities and ranks of tokens[skip:]."""
    n = len(tokens)
    logprobs: list[float | None] = [None] * n
    ranks: list[int | None] = [None] * n
    for window in windows(n, model.config.n_positions, stride):
        first = max(window.first, window.begin + 1, skip)  # no token comes before the window's first one
        if first < window.end:
            ids = mx.array([tokens[window.begin : window.end]])
            hidden = model.decoder.hidden(ids)[0]  # [L, D]
            before = hidden[first - window.begin - 1 : -1]  # of the positions that predict the tokens from `first` on
            logprobs[first : window.end], ranks[first : window.end] = look_up(model, before, tokens[first : window.end])
            mx.clear_cache()
        if progress:
            progress(max(window.end - skip, 0), n - skip)
    return logprobs[skip:], ranks[skip:]


def look_up(model: Model, hidden: mx.array, targets: list[int]) -> tuple[list[float], list[int]]:
    """The log-probability and rank of each target, from the hidden state of the position before it: hidden [n, D].

    Raises NumericError for logits that are not finite.
    """
    logprobs: list[float] = []
    ranks: list[int] = []
    for start in range(0, len(targets), HEAD_CHUNK):
        end = start + HEAD_CHUNK
        found, rank = _look_up(model.decoder.head(hidden[start:end]), mx.array(targets[start:end]))
        logprobs += cast(list[float], found.tolist())
        ranks += cast(list[int], rank.tolist())
    if not all(map(math.isfinite, logprobs)):
        raise NumericError(NOT_FINITE)
    return logprobs, ranks


def _look_up(logits: mx.array, targets: mx.array) -> tuple[mx.array, mx.array]:
    """The log-probability and rank of each target (from 1, ties to the lower id): [L, V], [L] -> [L] each."""
    own = mx.take_along_axis(logits, targets[:, None], axis=-1)  # [L, 1]
    better = mx.sum(logits > own, axis=-1)
    level = mx.sum((logits == own) & (mx.arange(logits.shape[-1]) < targets[:, None]), axis=-1)
    logprobs = mx.take_along_axis(log_softmax(logits), targets[:, None], axis=-1)[:, 0]
    return logprobs, better + level + 1
