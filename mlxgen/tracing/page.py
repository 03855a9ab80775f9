"""A trace, or two side by side, as one self-contained HTML page, which needs no network and no other file."""

from __future__ import annotations

import html
import json
import math
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from mlxgen.tracing.parting import parting
from mlxgen.tracing.record import BANS, Token, Trace, TracedStep

PARTS = ("page.css", "rules.js", "view.js", "words.js", "stages.js", "heads.js", "page.js")


def page(trace: Trace, other: Trace | None = None) -> str:
    """The page as HTML text. Texts from the trace are embedded as data, never as markup.

    other: a trace of the same prompt, to show both side by side. Raises OptionError if its prompt differs.
    """
    folder = files("mlxgen.tracing") / "page_assets"
    template, *parts = ((folder / name).read_text(encoding="utf-8") for name in ("template.html", *PARTS))
    prompt = trace.prompt if isinstance(trace.prompt, str) else f"{len(trace.prompt)} token ids"
    return Template(template).substitute(
        {name.replace(".", "_"): part for name, part in zip(PARTS, parts, strict=True)},
        title=html.escape(f"{_short(prompt)} – mlxgen trace"),
        data=_in_script(page_data(trace) if other is None else pair_data(trace, other)),
    )


def pair_data(first: Trace, second: Trace) -> dict[str, Any]:
    """Two traces as data for the page, and where they part."""
    place = parting(first, second)
    return {"runs": [page_data(first), page_data(second)], "parting": None if place is None else asdict(place)}


def page_data(trace: Trace) -> dict[str, Any]:
    """The trace in a compact form: each text once, in `pieces`; candidates as parallel lists; numbers rounded."""
    tokens = {token.id: token for token in [*trace.prompt_tokens, *trace.tokens]}
    pieces = {token.id: token.text for token in tokens.values()}
    for step in trace.steps:
        pieces |= {one.token: one.text for one in step.candidates} | {one.token: one.text for one in step.lens}
    if trace.greedy:
        pieces |= dict(zip(trace.greedy.tokens, trace.greedy.texts, strict=True))
    return {
        "model": Path(trace.model).name if Path(trace.model).is_absolute() else trace.model,
        "n_layer": trace.n_layer,
        "n_positions": trace.n_positions,
        "vocab_size": trace.vocab_size,
        "options": trace.options,
        "candidates": trace.candidates,
        "seed": trace.seed,
        "prompt": [token.id for token in trace.prompt_tokens],
        "pieces": pieces,
        "spellings": {token.id: token.piece for token in tokens.values() if _differs_from_text(token)},
        "steps": [_step(step) for step in trace.steps],
        "greedy": trace.greedy
        and {"ids": trace.greedy.tokens, "logprobs": [round(logprob, 4) for logprob in trace.greedy.logprobs]},
    }


def _step(step: TracedStep) -> dict[str, Any]:
    best = max(step.candidates, key=lambda one: one.logit)
    changed = any(one.logit != one.adjusted for one in step.candidates)
    banned = any(one.cut_by in BANS for one in step.candidates)
    chosen, cache, rest, seconds = step.chosen, step.cache, step.rest, step.seconds
    return {
        "context": step.context_length,
        "processed": step.processed,
        "cache": {name: getattr(cache, name) for name in type(cache).__dataclass_fields__},
        "lens": [[one.layer, one.token, _p(one.probability), _p(one.chosen_probability)] for one in step.lens],
        "attention": [[one.layer, one.head, [round(1000 * w) for w in one.weights]] for one in step.attention],
        "entropy": round(step.entropy, 4),
        "rule_entropy": round(step.rule_entropy, 4),
        "ids": [one.token for one in step.candidates],
        "logits": [round(one.adjusted, 4) for one in step.candidates],
        "raw": [round(one.logit, 4) for one in step.candidates] if changed else None,
        "banned": [one.cut_by if one.cut_by in BANS else None for one in step.candidates] if banned else None,
        "log_total": round(best.logit - math.log(best.probability), 6),
        "rest": {
            "count": rest.count,
            "probability": _p(rest.probability),
            "groups": [[size, round(mean, 4), round(variance, 5)] for size, mean, variance in rest.groups],
        },
        "rules": [[rule.name, rule.value, rule.kept, _p(rule.kept_probability)] for rule in step.rules],
        "random": step.random,
        "chosen": {
            "token": chosen.token,
            "probability": _p(chosen.probability),
            "logprob": round(chosen.logprob, 5),
            "rule_probability": _p(chosen.rule_probability),
            "rank": chosen.rank,
        },
        "seconds": [_p(part) for part in (seconds.context, seconds.transformer, seconds.logits, seconds.sample)]
        + [_p(seconds.append)],
        "finish": step.finish_reason,
    }


def _p(number: float) -> float:
    return float(f"{number:.6g}")


def _differs_from_text(token: Token) -> bool:
    """Whether the vocabulary's spelling of a token differs from its text."""
    return token.piece.replace("Ġ", " ") != token.text


def _short(text: str) -> str:
    line = " ".join(text.split()) or "(empty prompt)"
    return line if len(line) <= 60 else line[:59] + "…"


def _in_script(data: dict[str, Any]) -> str:
    """JSON that is safe inside a script element: escapes tags and the line breaks of older JavaScript."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
