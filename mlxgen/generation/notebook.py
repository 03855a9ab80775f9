"""An answer in a notebook cell: its text, and each token's probability on hover."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

STYLE = "white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate"
PROMPT_STYLE = "opacity: 0.6"
STRONGEST = 0.45  # opacity of the colour behind a token of probability 0


def answer_html(prompt: str, pieces: Iterable[str], logprobs: Iterable[float], notes: Sequence[str] = ()) -> str:
    """The prompt and the answer as HTML that runs nothing; improbable tokens are coloured.

    pieces: the text that became certain with each token. A token without text (a part of a character, an end token)
    adds its line to the next one's hover. logprobs: natural, one a token. notes: what else to say on hover, one a token
    or none at all.
    """
    spans, waiting, least = [], [], 1.0
    for at, (piece, logprob) in enumerate(zip(pieces, logprobs, strict=True)):
        probability = math.exp(logprob)
        waiting.append(f"{100 * probability:.3g} %" + (f" {notes[at]}" if notes else ""))
        least = min(least, probability)
        if piece:
            spans.append(_span(piece, "\n".join(waiting), least))
            waiting, least = [], 1.0
    if waiting:  # the end token
        spans.append(_span("∎", "\n".join(waiting), least))
    return f'<div style="{STYLE}"><span style="{PROMPT_STYLE}">{html.escape(prompt)}</span>{"".join(spans)}</div>'


def _span(text: str, hover: str, probability: float) -> str:
    colour = f"background: rgba(230, 140, 0, {STRONGEST * (1 - probability):.2f})"
    return f'<span style="{colour}" title="{html.escape(hover)}">{html.escape(text)}</span>'
