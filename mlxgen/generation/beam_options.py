"""The options of a beam search: its own, and those that it shares with generate()."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from mlxgen.errors import OptionError, check_whole, shown
from mlxgen.generation.option_names import way_out
from mlxgen.generation.request import Options, Request, check_options

EarlyStopping = bool | Literal["never"]

STEEPEST = 10  # length penalty: steeper ones leave nothing but the length

# The options of generate() that a beam search has.
SHARED = (
    "max_tokens",
    "stop",
    "ignore_eos",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "no_repeat_ngram",
    "bad_words",
    "min_tokens",
    "suppress_tokens",
    "prefill_chunk",
    "progress",
)
# Why it has no others, and their values that change nothing, besides None.
DRAWS = "a beam search draws nothing at random"
ONE_TEXT = "a beam search continues several texts at once"
WHOLE = "a beam search keeps the whole context"
REASONS = {
    **dict.fromkeys(("temperature", "top_k", "top_p", "min_p", "seed"), DRAWS),
    **dict.fromkeys(("typical_p", "epsilon_cutoff", "eta_cutoff"), DRAWS),
    **dict.fromkeys(("lookahead", "draft", "logprobs", "logits_processors"), ONE_TEXT),
    **dict.fromkeys(("max_kv_size", "keep", "overflow"), WHOLE),
}
OFF = {
    **dict.fromkeys(("temperature", "epsilon_cutoff", "eta_cutoff", "logprobs", "keep"), 0),
    "lookahead": False,
    "logits_processors": [],
    "overflow": "stop",
}


@dataclass(frozen=True, slots=True)
class BeamOptions:
    """The options that only a beam search has; see `beam_search`. Raises OptionError."""

    beams: int = 4
    n_best: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    def __post_init__(self) -> None:
        check_whole("beams", self.beams, 1)
        check_whole("n_best", self.n_best, 1)
        if self.n_best > self.beams:
            raise OptionError(f"n_best must be at most the number of beams ({self.beams}), not {self.n_best}")
        penalty: object = self.length_penalty
        if not isinstance(penalty, int | float) or isinstance(penalty, bool) or not abs(penalty) <= STEEPEST:
            raise OptionError(f"length_penalty must be a number from -{STEEPEST} to {STEEPEST}, not {shown(penalty)}")
        early: object = self.early_stopping
        if not isinstance(early, bool) and not (isinstance(early, str) and early == "never"):
            raise OptionError(f'early_stopping must be True, False or "never", not {shown(early)}')

    def score(self, total: float, length: int) -> float:
        """The score of an answer with this total log-probability and this many tokens."""
        return float(total / length**self.length_penalty)


def check_shared(**options: Any) -> Request:
    """A request with the options that a beam search shares with generate(). Raises OptionError, also for others."""
    known = [*SHARED, *BeamOptions.__annotations__]
    for name, value in options.items():
        if name not in Options.__annotations__:
            raise OptionError(f"unknown option {name!r}; {way_out(name, known)}")
        if name not in SHARED and value is not None and value != OFF.get(name):
            reason = REASONS.get(name, "a beam search does not have it")
            raise OptionError(f"{name} cannot be used with beams: {reason}; leave it out")
    own = {name: value for name, value in options.items() if name in SHARED}
    return check_options(**cast(Options, {**own, "temperature": 0, "seed": 0}))
