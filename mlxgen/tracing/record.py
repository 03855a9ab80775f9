"""The record of a traced generation: plain dataclasses, step by step in the loop's five stages.

Probabilities are of the whole vocabulary unless a field says otherwise; logs are natural, entropies in bits, times in
seconds, sizes in bytes. A span (a, b) means the context's tokens a, a + 1, … b - 1, counted from 0.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from mlxgen.generation.results import FinishReason

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Token:
    """A token of the vocabulary. piece: the vocabulary's own spelling; text: what it stands for.

    A token that is not a whole character is shown by its bytes, such as `\\xe2\\x80`.
    """

    id: int
    piece: str
    text: str


@dataclass(frozen=True, slots=True)
class CacheState:
    """Stage 2: what each layer's cache holds once the step's tokens are processed; all layers hold the same positions.

    before, after: positions held. held: the context's tokens that these belong to, and dropped: the processed ones
    that no longer have a place. pinned: how many of the first are never dropped. slid: whether the position table was
    full and the cache was rebuilt in this step. layer_bytes: keys and values of the positions held in one layer;
    allocated_bytes: the buffers of all layers, with the room they have left.
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
        """Keys and values of the positions held, in all layers."""
        return self.layers * self.layer_bytes


@dataclass(frozen=True, slots=True)
class LensEntry:
    """What the output head would choose after one layer (the logit lens, nostalgebraist 2020), at the newest position.

    chosen_probability: what it gives the token that the step chose in the end.
    """

    layer: int
    token: int
    text: str
    probability: float
    chosen_probability: float


@dataclass(frozen=True, slots=True)
class HeadAttention:
    """How one head of one layer spreads the newest position's attention over the held tokens, in their order."""

    layer: int
    head: int
    weights: list[float]


@dataclass(frozen=True, slots=True)
class RuleEffect:
    """Stage 4: one sampling rule. kept: tokens left after it; kept_probability: their share of what it was given,

    so for top-p the cumulative sum at the cut. "adjust" stands for penalties, bias and processors together.
    """

    name: str
    value: float | None
    kept: int
    kept_probability: float


@dataclass(frozen=True, slots=True)
class TracedCandidate:
    """A token that could have been chosen, the highest adjusted logit first.

    logit: as the model gives it; adjusted: after penalties and bias. probability: the model's own; tempered: after
    the temperature, before any cut; rule_probability: what it was drawn with. cut_by: the rule that dropped it.
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
    """The tokens that are not among the candidates, as one mass.

    groups: their adjusted logits in a few bands, highest first, each (tokens, mean, variance), from which their
    mass follows closely at any temperature.
    """

    count: int
    probability: float
    rule_probability: float
    groups: list[tuple[int, float, float]]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Stage 4's outcome. rank: 1 is the model's most probable token. logprob: natural, under the model itself.

    interval: the part of the line from 0 to 1 that belongs to the token, when the kept tokens lie on it in order of
    their ids, each as long as its rule_probability. The step's random number fell into it.
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
    """Wall time of each stage, the device's work included."""

    context: float
    transformer: float
    logits: float
    sample: float
    append: float


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One step of the loop.

    context_length: tokens in the context when the token is chosen; processed: how many of them went through the
    network in this step (the prompt in the first, then one). entropy, rule_entropy: bits, before and after the rules.
    key: the step's random key, two 32-bit words; random: the number between 0 and 1 drawn with it, see Chosen. Both are
    None where nothing is random, and `random` also where this version of MLX draws in another way. text: what became
    certain in the answer. total_logprob: the sum of the chosen tokens' logprobs so far, so its exponential is the
    probability of the text.
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
    """What the most probable token at each step would have given from the same prompt. logprobs: as Chosen's."""

    tokens: list[int]
    texts: list[str]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class Trace:
    """A traced generation. `text` is the answer, the same that generate() gives for this seed.

    options: the sampling and cache options in force. candidates: how many of the highest logits each step keeps; a
    token chosen from beyond them stands after them. greedy: None where the rules are greedy anyway.
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

    def to_json(self) -> str:
        """Everything as one JSON object: field names as here, spans and groups as lists."""
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)


def spans(indices: list[int]) -> list[Span]:
    """Sorted numbers as spans: [0, 1, 2, 7] is [(0, 3), (7, 8)]."""
    found: list[Span] = []
    for index in indices:
        if found and found[-1][1] == index:
            found[-1] = (found[-1][0], index + 1)
        else:
            found.append((index, index + 1))
    return found
