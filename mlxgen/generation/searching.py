"""Beam search: several texts are continued at once, and the most probable whole answers are returned.

Greedy decoding gives one text its most probable token at each step, and may so miss an answer that is more probable as
a whole. A beam search keeps the `beams` most probable texts and looks at every token after each of them. Its rules are
those of transformers 5 (`GenerationMixin._beam_search`):

1. Of all continuations of all beams, take the beams * max(2, 1 + number of end tokens) with the highest total
   log-probability, best first.
2. Those of the first `beams` that end (with an end token or a stop text, or because the length is reached) are
   finished. Their score is total / length ** length_penalty, where the length counts all tokens after the prompt. The
   `beams` finished answers with the highest scores are kept.
3. The beams go on with the first `beams` continuations that do not end.
4. The search is over when `beams` answers are finished, and either early_stopping is True or the best beam could no
   longer reach the worst of their scores: its total is at most that score * n ** length_penalty. n is the present
   length; with early_stopping "never" and a positive length_penalty it is the longest possible length.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Unpack

import mlx.core as mx

from mlxgen import device
from mlxgen.errors import ContextError, OptionError
from mlxgen.generation.beam_options import BeamOptions, EarlyStopping, check_shared
from mlxgen.generation.beams import Beams, Continuation, going_on, most_continuations
from mlxgen.generation.context import Context
from mlxgen.generation.loop import CLEAR_EVERY, check_finite
from mlxgen.generation.request import Options, Progress, Request
from mlxgen.generation.results import FinishReason, Generation
from mlxgen.model import Model
from mlxgen.text.excerpt import excerpt
from mlxgen.text.stop_text import StopText

NEAR = 16  # tokens of the prompt that a stop text is looked for with: they complete what the prompt's end left open


@dataclass(frozen=True, slots=True, repr=False)
class BeamGeneration(Generation):
    """One answer of a beam search: a Generation with its score.

    score: total log-probability / number of tokens ** length_penalty. The total is `logprob`, unless penalties, bias
    or bans changed the log-probabilities of the steps. steps: how many tokens the search took each beam, which the
    timings are about; the answer itself may be shorter. seed is 0: nothing was drawn.
    """

    score: float
    steps: int

    def __repr__(self) -> str:
        numbers = f"logprob={self.logprob:.4f}, score={self.score:.4f}"
        return f"BeamGeneration({excerpt(self.text)}, {numbers}, finish_reason={self.finish_reason!r})"

    @property
    def logprob(self) -> float:
        """The log-probability of the answer under the model itself: the sum of `logprobs`."""
        return math.fsum(self.logprobs)

    @property
    def generation_tps(self) -> float:
        """Steps of the search per second after the first one. Each gives every beam a token."""
        return (self.steps - 1) / self.generation_seconds if self.generation_seconds else 0.0


class Text(NamedTuple):
    """A text of the search: its newest token, with its log-probability under the model, and the text before that."""

    token: int
    logprob: float
    before: Text | None

    def steps(self) -> list[Text]:
        """The texts that grew into this one, from its first token on."""
        steps: list[Text] = []
        at: Text | None = self
        while at is not None:
            steps.append(at)
            at = at.before
        return steps[::-1]


class Finished(NamedTuple):
    score: float
    text: Text
    reason: FinishReason


def beam_search(
    model: Model,
    prompt: str | Sequence[int] = "",
    *,
    beams: int = 4,
    n_best: int = 1,
    length_penalty: float = 1.0,
    early_stopping: EarlyStopping = False,
    **options: Unpack[Options],
) -> list[BeamGeneration]:
    """Search for the most probable answers with several beams; returns the n_best best ones, best first.

    The answers are those of transformers' beam search. The prompt is processed once, and each step is one pass through
    the network for all beams.

    beams: how many texts are continued at once. n_best: how many answers to return, at most `beams`.
    length_penalty: an answer's score is its log-probability / length ** length_penalty. Above 0 favours long answers,
    below 0 short ones; 0 compares plain log-probabilities.
    early_stopping: True ends the search as soon as `beams` answers are finished. False goes on while the best beam, at
    its present length, could still score better than the worst of them; "never" while it could do so at any length.
    options: those of generate() that do not draw tokens: max_tokens, stop, ignore_eos, repetition_penalty,
    presence_penalty, frequency_penalty, logit_bias, no_repeat_ngram, bad_words, min_tokens, suppress_tokens,
    prefill_chunk, progress. Penalties, bias and bans change the log-probabilities of each step, as in transformers.

    An answer ends, with finish_reason "context", where the model's context is full. There are fewer answers than n_best
    only if bans leave no more. Raises OptionError for invalid options and ContextError for a prompt that leaves
    no room for an answer.
    """
    search = BeamOptions(beams, n_best, length_penalty, early_stopping)
    return find(model, check_shared(**options).with_prompt(model, prompt), search)


def find(
    model: Model, request: Request, options: BeamOptions, progress: Progress | None = None
) -> list[BeamGeneration]:
    """The best answers to a request that has a prompt. progress: is called with (steps done, most steps)."""
    return BeamSearch(model, request, options).run(progress)


class BeamSearch:
    """One search. Raises OptionError and ContextError for what does not fit the model."""

    def __init__(self, model: Model, request: Request, options: BeamOptions) -> None:
        self._request, self._options = request, options
        self._end_tokens = request.end_tokens(model)
        vocabulary, most = model.config.vocab_size, most_continuations(options.beams, self._end_tokens)
        if most > vocabulary:
            fitting = vocabulary // most_continuations(1, self._end_tokens)
            raise OptionError(f"the model's vocabulary of {vocabulary:,} tokens allows at most {fitting:,} beams")
        if (room := model.config.n_positions - len(request.ids)) < 1:
            raise ContextError(
                f"the prompt has {len(request.ids):,} tokens and leaves no room for an answer in the model's"
                f" {model.config.n_positions:,} positions; shorten it"
            )
        self._context = Context(model, request.context)
        self._context.extend(request.ids)
        self._limit = min(request.max_tokens, room)
        self._at_limit: FinishReason = "length" if self._limit == request.max_tokens else "context"
        self._finished: list[Finished] = []  # best first, `beams` at most

    def run(self, progress: Progress | None = None) -> list[BeamGeneration]:
        """Search; returns the answers, best first."""
        mx.reset_peak_memory()
        began = time.perf_counter()
        beams = Beams(self._context, self._request, self._options.beams)
        with device.wired_memory():
            found = beams.start(self._context, self._context.prefill(self._request.progress))
            texts: list[Text | None] = [None]
            first = 0.0
            for count in range(1, self._limit + 1):
                following = None
                if count < self._limit and not self._request.stop:
                    following = beams.go_on(found)  # the device works on it while this step is read
                continuations, finite = found.read()
                check_finite(finite, finite, count - 1, ())
                first = first or time.perf_counter()
                grown = [Text(c.token, c.logprob, texts[c.beam]) for c in continuations]
                ended = [self._ends(text) for text in grown]
                self._finish(continuations, grown, ended, count)
                order = going_on(ended, self._options.beams)
                best = -math.inf if ended[order[0]] else continuations[order[0]].total
                if progress:
                    progress(count, self._limit)
                if count == self._limit or self._is_over(best, count):
                    break
                texts = [grown[at] for at in order]
                found = following or beams.go_on(found, ended)
                if count % CLEAR_EVERY == 0:
                    mx.clear_cache()
        if not self._finished:
            check_finite(False, True, count - 1, self._request.adjusting)
        times = {"prompt_seconds": first - began, "generation_seconds": time.perf_counter() - first}
        return [self._answer(one, count, times) for one in self._finished[: self._options.n_best]]

    def _finish(
        self, continuations: Sequence[Continuation], texts: Sequence[Text], ended: Sequence[bool], count: int
    ) -> None:
        """Keep the answers that this step finished, if they are among the best."""
        for at, made in enumerate(continuations[: self._options.beams]):
            if (ended[at] or count == self._limit) and made.total > -math.inf:
                reason: FinishReason = "stop" if ended[at] else self._at_limit
                self._finished.append(Finished(self._options.score(made.total, count), texts[at], reason))
        self._finished.sort(key=lambda one: -one.score)
        del self._finished[self._options.beams :]

    def _is_over(self, best: float, count: int) -> bool:
        """Whether no better answer is looked for. best: the total of the best beam after `count` tokens."""
        if best == -math.inf:
            return True  # nothing is left that could go on
        if len(self._finished) < self._options.beams:
            return False
        longest = self._options.early_stopping == "never" and self._options.length_penalty > 0
        reachable = self._options.score(best, self._limit if longest else count)
        return self._options.early_stopping is True or reachable <= self._finished[-1].score

    def _ends(self, text: Text) -> bool:
        stops = bool(self._request.stop)
        return text.token in self._end_tokens or (stops and self._spell(text, self._context.tokens[-NEAR:])[1])

    def _spell(self, text: Text, context: Sequence[int]) -> tuple[list[str], bool]:
        """The text that becomes certain with each token after the context, and whether a stop text ends it."""
        stream, stops = self._context.model.tokenizer.stream(context), StopText(self._request.stop)
        steps = text.steps()
        pieces = ["" if at.token in self._end_tokens else stops.feed(stream.add(at.token)) for at in steps]
        stopped = stops.hit
        if not stopped:
            pieces[-1] += stops.feed(stream.flush()) + stops.flush()
        return pieces, stopped

    def _answer(self, one: Finished, count: int, times: dict[str, float]) -> BeamGeneration:
        steps, (pieces, _) = one.text.steps(), self._spell(one.text, self._context.tokens)
        return BeamGeneration(
            prompt=self._request.prompt,
            prompt_tokens=list(self._context.tokens),
            text="".join(pieces),
            tokens=[at.token for at in steps],
            logprobs=[at.logprob for at in steps],
            pieces=pieces,
            candidates=[],
            finish_reason=one.reason,
            seed=self._request.seed,
            **times,
            peak_memory=mx.get_peak_memory(),
            guesses=0,
            accepted=0,
            score=one.score,
            steps=count,
        )
