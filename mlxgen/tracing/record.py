"""The record of a traced generation: plain dataclasses, with the five stages of the loop for each step.

Probabilities are over the whole vocabulary unless a field says otherwise. Logarithms are natural, entropies in bits,
times in seconds, sizes in bytes. A span (a, b) stands for the context's tokens a to b - 1, counted from 0.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from mlxgen.generation.results import FinishReason
from mlxgen.text.excerpt import excerpt

Span = tuple[int, int]

BANS = ("no_repeat_ngram", "bad_words", "min_tokens", "suppress_tokens")  # rules before the temperature, by option


@dataclass(frozen=True, slots=True)
class Token:
    """A token of the vocabulary. piece: its spelling in the vocabulary; text: the text that it stands for.

    The text of a token that is not a whole character is its bytes, such as `\\xe2\\x80`.
    """

    id: int
    piece: str
    text: str


@dataclass(frozen=True, slots=True)
class CacheState:
    """Stage 2: the cache after the step's tokens were processed. All layers hold the same positions.

    before, after: number of positions in the cache. held: the context's tokens in the cache; dropped: the processed
    tokens that are no longer in it. pinned: how many of the first tokens are never dropped. slid: whether the position
    table was full and the cache was rebuilt in this step. layer_bytes: the keys and values of one layer;
    allocated_bytes: the buffers of all layers, including unused capacity.
    """

    layers: int
    before: int
    after: int
    held: list[Span]
    dropped: list[Span]
    pinned: int
    slid: bool
    layer_bytes: int
    allocated_bytes: int

    @property
    def total_bytes(self) -> int:
        """The keys and values of all layers."""
        return self.layers * self.layer_bytes


@dataclass(frozen=True, slots=True)
class LensEntry:
    """The output head's prediction after one layer, at the newest position (the logit lens, nostalgebraist 2020).

    token, probability: the most probable token. chosen_probability: the probability of the token that the step chose.
    """

    layer: int
    token: int
    text: str
    probability: float
    chosen_probability: float


@dataclass(frozen=True, slots=True)
class HeadAttention:
    """The attention weights of one head at the newest position, over the tokens in the cache, in context order."""

    layer: int
    head: int
    weights: list[float]


@dataclass(frozen=True, slots=True)
class RuleEffect:
    """Stage 4: the effect of one sampling rule. "adjust" stands for processors, bias and penalties together.

    It and the bans are recorded only if they change something.

    kept: how many tokens are left after the rule. kept_probability: their total probability before it; for top-p, that
    is the cumulative probability at the cut.
    """

    name: str
    value: float | None
    kept: int
    kept_probability: float


@dataclass(frozen=True, slots=True)
class TracedCandidate:
    """A token that could have been chosen, or was banned. Candidates are sorted by adjusted logit, highest first.

    logit: the model's; adjusted: after processors, bias and penalties. probability: the model's; tempered: after the
    temperature, before any cut; rule_probability: after all rules. cut_by: the rule that removed it, or None.
    """

    token: int
    text: str
    logit: float
    adjusted: float
    probability: float
    tempered: float
    rule_probability: float
    cut_by: str | None


@dataclass(frozen=True, slots=True)
class Rest:
    """A summary of all tokens that are not among the candidates.

    groups: the adjusted logits of those that no ban removed, in a few bands, highest first, each as (tokens, mean,
    variance). From these, their total probability at any temperature can be computed closely.
    """

    count: int
    probability: float
    rule_probability: float
    groups: list[tuple[int, float, float]]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Stage 4: the chosen token. rank: 1 for the model's most probable token. logprob: under the model itself.

    interval: the token's part of the line from 0 to 1, on which the kept tokens lie in order of their ids, each as long
    as its rule_probability. The step's random number falls into this part.
    """

    token: int
    text: str
    probability: float
    logprob: float
    rule_probability: float
    rank: int
    interval: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Seconds:
    """Wall time of each stage, including the device's work."""

    context: float
    transformer: float
    logits: float
    sample: float
    append: float


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One step of the loop.

    context_length: tokens in the context when the token is chosen. processed: how many of them went through the network
    in this step: the whole prompt in the first step, then one. entropy, rule_entropy: of the distribution before and
    after the rules, in bits. key: the step's random key, two 32-bit words. random: the number between 0 and 1 drawn
    with it, see Chosen. Both are None for greedy decoding. text: the text that this token completes. total_logprob: the
    sum of the chosen tokens' logprobs so far; its exponential is the probability of the text.
    """

    index: int
    context_length: int
    processed: int
    cache: CacheState
    lens: list[LensEntry]
    attention: list[HeadAttention]
    entropy: float
    rule_entropy: float
    candidates: list[TracedCandidate]
    rest: Rest
    rules: list[RuleEffect]
    key: list[int] | None
    random: float | None
    chosen: Chosen
    text: str
    total_logprob: float
    seconds: Seconds
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class GreedyPath:
    """The greedy answer to the same prompt. logprobs: as in Chosen."""

    tokens: list[int]
    texts: list[str]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class Trace:
    """A traced generation. `text` is the answer, the same as from generate() with this seed.

    options: the sampling and cache options. candidates: how many of the highest logits each step keeps; if the chosen
    token is not among them, it follows them. greedy: the greedy answer, or None if the rules are greedy.
    """

    model: str
    n_layer: int
    n_head: int
    n_embd: int
    n_positions: int
    vocab_size: int
    options: dict[str, Any]
    candidates: int
    seed: int
    prompt: str | list[int]
    prompt_tokens: list[Token]
    steps: list[TracedStep] = field(repr=False)
    tokens: list[Token] = field(repr=False)  # the chosen ones
    text: str
    finish_reason: FinishReason
    greedy: GreedyPath | None = field(repr=False)

    def __repr__(self) -> str:
        shown = f"{self.model!r}, {excerpt(self.text)}, steps={len(self.steps)}"
        return f"Trace({shown}, finish_reason={self.finish_reason!r})"

    def to_json(self) -> str:
        """The trace as one JSON object with these field names; spans and groups become lists."""
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)


def spans(indices: list[int]) -> list[Span]:
    """Group sorted numbers into spans: [0, 1, 2, 7] becomes [(0, 3), (7, 8)]."""
    found: list[Span] = []
    for index in indices:
        if found and found[-1][1] == index:
            found[-1] = (found[-1][0], index + 1)
        else:
            found.append((index, index + 1))
    return found
