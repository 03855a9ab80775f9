"""trace(): the same loop as generate(), with a record of each step."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, Unpack

from mlxgen.errors import OptionError, check_whole, shown
from mlxgen.generation.answer import answer
from mlxgen.generation.request import Options, Request, check_options, refuse_guesses
from mlxgen.generation.results import Step
from mlxgen.model import Model
from mlxgen.tracing.notebook import NotebookTrace
from mlxgen.tracing.observer import Observation, TraceObserver
from mlxgen.tracing.record import Chosen, GreedyPath, Seconds, Trace, TracedStep
from mlxgen.tracing.statistics import traced_token

STEPS = 20
TOP = 200  # candidates kept by each step; the others are summarized
Heads = Iterable[tuple[int, int]] | Literal["all"]  # (layer, head) pairs, counted from 0


def trace(
    model: Model,
    prompt: str | Sequence[int] = "",
    steps: int = STEPS,
    *,
    lens: bool = False,
    attention: Heads = (),
    candidates: int = TOP,
    greedy_path: bool = True,
    **options: Unpack[Options],
) -> Trace:
    """Generate up to `steps` tokens and record how each was chosen. The options and the text are those of generate().

    lens: also record what each layer would predict at the newest position. attention: (layer, head) pairs, counted from
    0, or "all": the heads whose attention at the newest position is recorded. candidates: how many of the highest
    logits each step keeps. greedy_path: also generate the greedy answer to the same prompt, for comparison. Raises the
    errors of stream().
    """
    if "max_tokens" in options:
        raise OptionError("trace() takes steps=, not max_tokens=")
    check_whole("steps", steps, 1)
    options["max_tokens"] = steps
    request = check_options(**options)
    return trace_request(
        model, request, prompt, lens=lens, attention=attention, candidates=candidates, greedy_path=greedy_path
    )


def trace_request(
    model: Model,
    request: Request,
    prompt: str | Sequence[int],
    *,
    lens: bool = False,
    attention: Heads = (),
    candidates: int = TOP,
    greedy_path: bool = True,
) -> Trace:
    """Like trace(), for a checked request; its max_tokens is the number of steps."""
    began = time.perf_counter()
    refuse_guesses(request, "checks several tokens in one pass, but a trace shows each step; leave it out of a trace")
    check_whole("candidates", candidates, 1)
    heads = checked_heads(model, attention)
    request = replace(request, logprobs=0).with_prompt(model, prompt)
    observer = TraceObserver(request.sampling, top=candidates, lens=lens, heads=heads)
    steps = answer(model, request, observer)
    context_seconds = time.perf_counter() - began
    traced: list[TracedStep] = []
    for step in steps:
        append_seconds = time.perf_counter() - observer.ended
        seen = observer.observations[step.index]
        seconds = Seconds(
            0.0 if traced else context_seconds,
            seen.transformer_seconds,
            seen.logits_seconds,
            seen.sample_seconds,
            append_seconds,
        )
        traced.append(_step(model, step, seen, seconds, traced[-1].total_logprob if traced else 0.0))
    config = model.config
    return NotebookTrace(
        model=model.label,
        n_layer=config.n_layer,
        n_head=config.n_head,
        n_embd=config.n_embd,
        n_positions=config.n_positions,
        vocab_size=config.vocab_size,
        options=_json_options(request),
        candidates=min(candidates, config.vocab_size),
        seed=request.seed,
        prompt=request.prompt,
        prompt_tokens=[traced_token(model.tokenizer, token) for token in request.ids],
        steps=traced,
        tokens=[traced_token(model.tokenizer, step.chosen.token) for step in traced],
        text="".join(step.text for step in traced),
        finish_reason=steps.generation.finish_reason,
        greedy=None if request.sampling.greedy or not greedy_path else _greedy_path(model, request),
    )


def checked_heads(model: Model, attention: Heads) -> list[tuple[int, int]]:
    """The (layer, head) pairs, sorted and without duplicates. Raises OptionError for one that the model lacks."""
    if isinstance(attention, str):
        if attention != "all":
            raise OptionError(f'attention must be "all" or a list of (layer, head) pairs, not {shown(attention)}')
        return [(layer, head) for layer in range(model.config.n_layer) for head in range(model.config.n_head)]
    try:
        heads = sorted({(operator.index(layer), operator.index(head)) for layer, head in attention})
    except (TypeError, ValueError):
        raise OptionError(f'attention must be "all" or a list of (layer, head) pairs, not {shown(attention)}') from None
    for layer, head in heads:
        if not (0 <= layer < model.config.n_layer and 0 <= head < model.config.n_head):
            raise OptionError(
                f"there is no head {head} in layer {layer}: layers go from 0 to {model.config.n_layer - 1},"
                f" heads from 0 to {model.config.n_head - 1}"
            )
    return heads


def _json_options(request: Request) -> dict[str, Any]:
    """The sampling and cache options as JSON values. The bias of a banned token becomes "-inf"."""
    options = {**asdict(request.sampling), **asdict(request.context)}
    del options["prefill_chunk"]
    bias = (request.sampling.logit_bias or {}).items()
    shown = {str(token): value if math.isfinite(value) else "-inf" for token, value in bias}
    return {**options, "logit_bias": shown or None}


def _step(model: Model, step: Step, seen: Observation, seconds: Seconds, total: float) -> TracedStep:
    candidate = next(one for one in seen.candidates if one.token == step.token)
    return TracedStep(
        index=step.index,
        context_length=seen.context_length,
        processed=seen.processed,
        cache=seen.cache,
        lens=seen.lens,
        attention=seen.attention,
        entropy=seen.entropy,
        rule_entropy=seen.rule_entropy,
        candidates=seen.candidates,
        rest=seen.rest,
        rules=seen.rules,
        key=seen.key,
        random=seen.random,
        chosen=Chosen(
            step.token,
            model.tokenizer.token_text(step.token),
            candidate.probability,
            step.logprob,
            seen.rule_probability,
            seen.rank,
            seen.interval,
        ),
        text=step.text,
        total_logprob=total + step.logprob,
        seconds=seconds,
        finish_reason=step.finish_reason,
    )


def _greedy_path(model: Model, request: Request) -> GreedyPath:
    greedy = answer(model, request.changed(temperature=0.0, progress=None)).finish()
    return GreedyPath(greedy.tokens, [model.tokenizer.token_text(token) for token in greedy.tokens], greedy.logprobs)
