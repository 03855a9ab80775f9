"""See each step: the same loop as generate(), watched."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Unpack, cast

from mlxgen.errors import OptionError
from mlxgen.generation.answer import SAMPLING, SESSION, Options, generate, prompt_ids, refuse_guesses, session_steps
from mlxgen.generation.loop import Step
from mlxgen.generation.session import Session
from mlxgen.model import Model
from mlxgen.network.decoder import GPT2
from mlxgen.sampling.chooser import checked_seed
from mlxgen.sampling.samplers import Sampling
from mlxgen.tracing.observer import Seen, WatchedChooser, WatchedDecoder
from mlxgen.tracing.record import Chosen, GreedyPath, Seconds, Trace, TracedStep
from mlxgen.tracing.statistics import token_text, traced_token

STEPS = 20
TOP = 200  # candidates whose logits are kept; the others are one mass


def trace(
    model: Model,
    prompt: str | Sequence[int] = "",
    steps: int = STEPS,
    *,
    lens: bool = False,
    attention: Iterable[tuple[int, int]] = (),
    candidates: int = TOP,
    greedy_path: bool = True,
    **options: Unpack[Options],
) -> Trace:
    """Generate up to `steps` tokens and record why each was chosen. Options are generate()'s, and so is the text.

    lens: also what each layer would choose at the newest position. attention: (layer, head) pairs, from 0, whose
    attention from the newest position is recorded. candidates: how many of the highest logits each step keeps.
    greedy_path: also generate greedily from the same prompt, to compare with. Raises what stream() raises.
    """
    began = time.perf_counter()
    if "max_tokens" in options:
        raise OptionError("a trace takes steps=, not max_tokens=")
    refuse_guesses(options, "checks several tokens in one pass: leave it out of a trace, which shows each step")
    if candidates < 1:
        raise OptionError(f"candidates must be at least 1, not {candidates}")
    heads = checked_heads(model, attention)
    options["max_tokens"], options["logprobs"] = steps, 0
    options["seed"] = seed = checked_seed(options.get("seed"))
    ids = prompt_ids(model, prompt)
    watched = replace(model, decoder=cast(GPT2, WatchedDecoder(model.decoder)))
    session = Session(watched, **_of(options, SESSION))
    session.extend(ids)
    context_seconds = time.perf_counter() - began
    choosers: list[WatchedChooser] = []

    def chooser(*args: Any, **kwargs: Any) -> WatchedChooser:
        choosers.append(WatchedChooser(*args, session=session, top=candidates, lens=lens, heads=heads, **kwargs))
        return choosers[0]

    traced: list[TracedStep] = []
    for step in session_steps(session, options, chooser):
        append_seconds = time.perf_counter() - choosers[0].ended
        seen = choosers[0].seen[step.index]
        seconds = Seconds(
            0.0 if traced else context_seconds,
            seen.transformer_seconds,
            seen.logits_seconds,
            seen.sample_seconds,
            append_seconds,
        )
        traced.append(_step(model, step, seen, seconds, traced[-1].total_logprob if traced else 0.0))
    sampling = Sampling(**_of(options, SAMPLING))
    config = model.config
    return Trace(
        model=model.name,
        n_layer=config.n_layer,
        n_head=config.n_head,
        n_embd=config.n_embd,
        n_positions=config.n_positions,
        vocab_size=config.vocab_size,
        options=_in_force(sampling, session, options),
        candidates=min(candidates, config.vocab_size),
        seed=seed,
        prompt=prompt if isinstance(prompt, str) else list(prompt),
        prompt_tokens=[traced_token(model.tokenizer, token) for token in ids],
        steps=traced,
        tokens=[traced_token(model.tokenizer, step.chosen.token) for step in traced],
        text="".join(step.text for step in traced),
        finish_reason=(traced[-1].finish_reason or "stop") if traced else "context",
        greedy=None if sampling.greedy or not greedy_path else _greedy_path(model, ids, options),
    )


def checked_heads(model: Model, attention: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The asked (layer, head) pairs, each once and in order. Raises OptionError for one the model does not have."""
    heads = sorted(set(attention))
    for layer, head in heads:
        if not (0 <= layer < model.config.n_layer and 0 <= head < model.config.n_head):
            raise OptionError(
                f"there is no head {head} in layer {layer}: layers go from 0 to {model.config.n_layer - 1},"
                f" heads from 0 to {model.config.n_head - 1}"
            )
    return heads


def _of(options: Options, names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in names}


def _in_force(sampling: Sampling, session: Session, options: Options) -> dict[str, Any]:
    """The options with their defaults, in what JSON can say: a banned token's bias is "-inf"."""
    bias = {
        str(token): value if math.isfinite(value) else "-inf" for token, value in (sampling.logit_bias or {}).items()
    }
    return (
        {name: getattr(sampling, name) for name in SAMPLING}
        | {"logit_bias": bias or None, "max_kv_size": options.get("max_kv_size")}
        | {"keep": session.keep, "overflow": session.overflow}
    )


def _step(model: Model, step: Step, seen: Seen, seconds: Seconds, total: float) -> TracedStep:
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
            token_text(model.tokenizer, step.token),
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


def _greedy_path(model: Model, ids: Sequence[int], options: Options) -> GreedyPath:
    asked = cast(Options, {**options, "temperature": 0.0, "progress": None})
    answer = generate(model, ids, **asked)
    return GreedyPath(answer.tokens, [token_text(model.tokenizer, token) for token in answer.tokens], answer.logprobs)
