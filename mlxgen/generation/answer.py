"""generate() and stream(), and the Answer they run on: an iterator over the steps of one request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Self, Unpack

from mlxgen.errors import OptionError
from mlxgen.generation.context import Context
from mlxgen.generation.loop import Guesser, steps
from mlxgen.generation.observer import Observer
from mlxgen.generation.one_thread import one_thread
from mlxgen.generation.request import Options, Request, check_options
from mlxgen.generation.results import Generation, Recorder, Step
from mlxgen.model import Model
from mlxgen.sampling.chooser import Chooser


class Answer(Iterator[Step]):
    """An iterator over the steps of one request. `generation` is the record of the steps so far.

    context: already holds the prompt. Nothing is computed before the first step. Raises OptionError for a request that
    does not fit the model or the context.
    """

    def __init__(self, context: Context, request: Request, observer: Observer | None = None) -> None:
        self.request, self.lock = request, context.lock
        choose = Chooser(
            request.sampling,
            request.seed,
            context.tokens,
            context.model.config.vocab_size,
            bans=request.bans(context.model),
            processors=request.logits_processors,
            candidates=request.logprobs,
            watch=partial(observer.after_choice, context) if observer else None,
        )
        guesser = _guesser(context, request)
        self._context, self._begin = context, len(context.tokens)
        self._recorder = Recorder(request, context.tokens[context.processed :])
        self._steps = steps(context, request, choose, guesser)

    def __iter__(self) -> Self:
        return self

    @one_thread
    def __next__(self) -> Step:
        try:
            step = next(self._steps)
            self._recorder.add(step)
        except KeyboardInterrupt:
            if len(self._context.tokens) == self._begin + self._recorder.count + 1:
                self._context.rewind(1)  # chosen, but not yet recorded
            raise
        return step

    @one_thread
    def close(self) -> None:
        """End the answer here. The context keeps every token that was yielded."""
        self._steps.close()  # type: ignore[attr-defined]  # a generator

    @property
    def generation(self) -> Generation:
        """The record of the answer so far: the whole answer once it is finished."""
        return self._recorder.record()

    @one_thread
    def finish(self) -> Generation:
        """Generate the rest of the answer; returns the record of all of it."""
        for _ in self:
            pass
        return self.generation


def answer(model: Model, request: Request, observer: Observer | None = None) -> Answer:
    """Answer a request that has a prompt, in a new context. Raises OptionError and ContextError."""
    context = Context(model, request.context, observer=observer)
    context.extend(request.ids)
    return Answer(context, request, observer)


def stream(model: Model, prompt: str | Sequence[int] = "", **options: Unpack[Options]) -> Answer:
    """Generate one token at a time. The prompt and the keyword arguments are those of generate().

    Iterate over the result for the steps; its `generation` is the record of what was generated so far. Raises
    OptionError for invalid options and ContextError for a prompt that does not fit, both before the first step.
    """
    return answer(model, check_options(**options).with_prompt(model, prompt))


def generate(model: Model, prompt: str | Sequence[int] = "", **options: Unpack[Options]) -> Generation:
    """Generate a whole answer; returns its text, tokens and statistics.

    prompt: text, or token ids: a list, a one-dimensional array, or what a tokenizer of transformers returns for a text.
    Raises OptionError for invalid options and ContextError for a prompt that does not fit.

    How much:
        max_tokens: at most this many tokens; 256.
        stop: a text, or a list of texts, before which the answer ends.
        ignore_eos: whether to continue past the model's end tokens; False.
    Which tokens:
        temperature: divides the logits; 0.8. With 0, each token is the most probable one.
        top_k: sample from this many most probable tokens; 40. None: from all.
        top_p: sample from the smallest set of most probable tokens with this total probability.
        min_p: leave out tokens less than this many times as probable as the most probable one.
        typical_p: sample from the tokens whose surprise is closest to the expected one, with this total probability.
        epsilon_cutoff: leave out tokens with a smaller probability than this.
        eta_cutoff: the same, with a smaller limit where many tokens are possible.
        repetition_penalty, presence_penalty, frequency_penalty: make tokens that are in the text less likely.
        logit_bias: a dict of token ids and numbers that are added to their logits; -inf bans a token.
        no_repeat_ngram: never repeat this many tokens in a row, prompt included.
        bad_words: a text, or a list of texts and of lists of token ids, that must not be generated.
        min_tokens: no end token before this many tokens.
        suppress_tokens: token ids that are never chosen.
        logits_processors: functions (tokens [n], logits [1, V]) -> logits, called before all other rules.
        seed: the same seed gives the same text; None: a new one each time.
    Context and cache:
        max_kv_size: positions of a rotating cache; None: the cache grows.
        keep: how many of the first tokens stay when the cache rotates or slides; 0.
        overflow: at the end of the position table, "stop", or "slide" to continue from the newest half of the context.
        prefill_chunk: how many prompt tokens are processed at a time.
    Speed:
        lookahead: whether to guess tokens from the text so far and check several in one pass; False.
        draft: a smaller model of the same vocabulary that guesses.
    Reports:
        logprobs: how many candidates each step reports; 0.
        progress: a function (done, total) that is called while the prompt is processed.
    """
    return stream(model, prompt, **options).finish()


def _guesser(context: Context, request: Request) -> Guesser | None:
    """The guesser that the request asks for, or None. Raises OptionError."""
    if not request.is_guessing:
        return None
    if not context.has_own_cache:
        raise OptionError("lookahead and draft need the session's own cache: leave out cache=")
    from mlxgen.generation.draft import Draft
    from mlxgen.generation.lookahead import NGrams

    return NGrams(context.tokens) if request.draft is None else Draft(context, request.draft)
