"""Requests: the options, checked once and kept in a frozen Request that every way to generate uses."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypedDict, Unpack, cast

from mlxgen.errors import OptionError, check_whole, shown
from mlxgen.generation.model_bans import model_bans
from mlxgen.generation.option_names import way_out
from mlxgen.model import Model, encode_prompt, start_tokens
from mlxgen.sampling.bans import Bans
from mlxgen.sampling.chooser import LogitsProcessor
from mlxgen.sampling.samplers import Sampling, check_bias
from mlxgen.text.stop_text import StopText

Overflow = Literal["stop", "slide"]
Progress = Callable[[int, int], None]  # called with (tokens done, total tokens)

MAX_TOKENS = 256
MOST_SAMPLES = 100_000
PREFILL_CHUNK = 256


class Options(TypedDict, total=False):
    """The keyword arguments of generate(), stream(), batch(), sessions, chats and traces.

    The comments give the defaults; mlxgen.sampling.samplers describes the sampling rules.
    """

    max_tokens: int  # 256
    temperature: float  # 0.8; 0 is greedy
    top_k: int | None  # 40
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    epsilon_cutoff: float | None
    eta_cutoff: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    no_repeat_ngram: int | None
    bad_words: str | Sequence[str | Sequence[int]] | None  # texts, and lists of token ids
    min_tokens: int | None
    suppress_tokens: Collection[int] | None
    logits_processors: Sequence[LogitsProcessor]  # callables (tokens [n], logits [1, V]) -> logits, run first
    seed: int | None  # None draws a new one
    stop: str | Sequence[str]  # texts that end the answer; they are not part of it
    ignore_eos: bool  # continue past end tokens
    logprobs: int  # how many candidates each step reports
    max_kv_size: int | None  # size of a rotating cache, in positions; None: the cache grows
    keep: int  # how many first positions are pinned in a rotating cache and kept by a slide
    overflow: Overflow  # "stop" or "slide" when the position table is full
    prefill_chunk: int  # prompt tokens processed at a time
    lookahead: bool  # guess tokens from the text so far and check several at once: faster, and in float32 the same text
    draft: Model | None  # a smaller model with the same vocabulary that guesses
    progress: Progress | None  # called with (done, total) while the prompt is processed


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """How a context is cached, and what happens when the position table is full. Raises OptionError.

    max_kv_size: size of a rotating cache whose first `keep` positions are pinned; None keeps every position.
    overflow: "stop" ends the answer; "slide" continues from the first `keep` and the newest tokens, half a table in
    total. prefill_chunk: how many prompt tokens go through the network at a time.
    """

    max_kv_size: int | None = None
    keep: int = 0
    overflow: Overflow = "stop"
    prefill_chunk: int = PREFILL_CHUNK

    def __post_init__(self) -> None:
        if self.overflow not in ("stop", "slide"):
            raise OptionError(f'overflow must be "stop" or "slide", not {shown(self.overflow)}')
        check_whole("prefill_chunk", self.prefill_chunk, 1)
        check_whole("keep", self.keep, 0)
        if self.max_kv_size is not None:
            check_whole("max_kv_size", self.max_kv_size, 1)
            if self.max_kv_size <= self.keep:
                raise OptionError(f"max_kv_size must be larger than keep ({self.keep}), not {self.max_kv_size}")

    def check_table(self, n_positions: int) -> None:
        """Raise OptionError if a model with this many positions cannot slide with these options."""
        if self.overflow == "slide" and self.keep >= (half := n_positions // 2):
            raise OptionError(f"to slide, keep must be less than half the position table ({half}), not {self.keep}")


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and the options for its answer. Made by `check_options`; all other code relies on its checks.

    prompt: as given by the caller; ids: its token ids. Both are empty until `with_prompt`. stop: texts that end the
    answer. logprobs: how many candidates each step reports. draft: a smaller model that guesses tokens.
    """

    prompt: str | list[int] = ""
    ids: tuple[int, ...] = field(default=(), repr=False)
    sampling: Sampling = field(default_factory=Sampling)
    context: ContextOptions = field(default_factory=ContextOptions)
    seed: int = 0
    max_tokens: int = MAX_TOKENS
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int = 0
    logits_processors: tuple[LogitsProcessor, ...] = ()
    lookahead: bool = False
    draft: Model | None = None
    progress: Progress | None = None

    @property
    def options(self) -> Options:
        """All options of the request, by the names of the keyword arguments."""
        own = {name: getattr(self, name) for name in OWN}
        parts = (self.sampling, self.context)
        return cast(Options, own | {entry.name: getattr(part, entry.name) for part in parts for entry in fields(part)})

    @property
    def is_guessing(self) -> bool:
        """Whether tokens are guessed, so that one pass checks several."""
        return self.lookahead or self.draft is not None

    def changed(self, **options: Unpack[Options]) -> Request:
        """A copy of the request with some options changed. Raises OptionError."""
        checked = check_options(**cast(Options, {**self.options, **options}))
        return replace(checked, prompt=self.prompt, ids=self.ids)

    def with_prompt(self, model: Model, prompt: str | Sequence[int], *, added: bool = False) -> Request:
        """A copy of the request with a prompt, which is tokenized here. Raises OptionError.

        Text begins with the tokens that the tokenizer puts before one, and an empty prompt becomes the model's start
        token. Not so where the prompt is added to a context that already has tokens (added=True).
        """
        self.check_against(model)
        own = encode_prompt(model, prompt, begins=not added, must_fit=self.context.overflow == "stop")
        ids = own if own or added else start_tokens(model)
        return replace(self, prompt=prompt if isinstance(prompt, str) else own, ids=tuple(ids))

    def check_against(self, model: Model) -> None:
        """Raise OptionError if an option does not fit the model."""
        if self.sampling.logit_bias:
            check_bias(self.sampling.logit_bias, model.config.vocab_size)
        self.bans(model)

    def bans(self, model: Model) -> Bans:
        """The tokens that the rules forbid, by the model's ids. Raises OptionError if they do not fit the model."""
        return model_bans(self.sampling, model, self.end_tokens(model))

    @property
    def adjusting(self) -> list[str]:
        """The options in use that change or remove logits before the temperature, in the order of the rules."""
        options: Any = self.options
        return [name for name in ADJUSTING if options[name]]

    def end_tokens(self, model: Model) -> frozenset[int]:
        """The token ids that end this answer."""
        return frozenset() if self.ignore_eos else model.end_tokens


ADJUSTING = (
    "logits_processors",
    "logit_bias",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "no_repeat_ngram",
    "bad_words",
    "min_tokens",
    "suppress_tokens",
)
SAMPLING = tuple(entry.name for entry in fields(Sampling))
CONTEXT = tuple(entry.name for entry in fields(ContextOptions))
OWN = tuple(entry.name for entry in fields(Request) if entry.name in Options.__annotations__)


def check_options(**options: Unpack[Options]) -> Request:
    """Check the options; returns a request without a prompt. Raises OptionError for an unknown name or invalid value.

    If the seed is None, a new one is drawn here.
    """
    given: dict[str, Any] = dict(options)
    if unknown := set(given) - set(Options.__annotations__):
        raise OptionError(f"unknown option {min(unknown)!r}; {way_out(min(unknown), Options.__annotations__)}")
    own = {name: given[name] for name in OWN if name in given}
    own["seed"] = checked_seed(own.get("seed"))
    max_tokens = own.get("max_tokens", MAX_TOKENS)
    check_whole("max_tokens", max_tokens, 1)
    check_whole("logprobs", own.get("logprobs", 0), 0)
    own["stop"] = StopText(own.get("stop", ())).stops
    own["logits_processors"] = _processors(own.get("logits_processors") or ())
    _check_flag("ignore_eos", own.get("ignore_eos", False))
    _check_guessing(own.get("lookahead", False), own.get("draft"))
    sampling = Sampling(**{name: given[name] for name in SAMPLING if name in given})
    if (sampling.min_tokens or 0) > max_tokens:
        raise OptionError(f"min_tokens must be at most max_tokens ({max_tokens}), not {sampling.min_tokens}")
    return Request(
        sampling=sampling,
        context=ContextOptions(**{name: given[name] for name in CONTEXT if name in given}),
        **own,
    )


def checked_seed(seed: int | None) -> int:
    """The seed, or a new one for None. Raises OptionError unless it is a whole number from 0 to 2^63 - 1."""
    if seed is None:
        return int.from_bytes(os.urandom(4))
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise OptionError(f"seed must be a whole number from 0 to 2^63 - 1, not {shown(seed)}")
    return seed


def sample_seeds(seed: int | None, num_samples: int) -> list[int]:
    """The seeds for several samples of one request: the first is the request's own, the others are derived from it."""
    check_whole("num_samples", num_samples, 1, MOST_SAMPLES)
    first = checked_seed(seed)
    others = random.Random(first)
    return [first, *(others.getrandbits(32) for _ in range(num_samples - 1))]


def refuse_guesses(request: Request, reason: str) -> None:
    """Raise OptionError if the request asks for guesses. reason: what the message says after the option's name."""
    if request.is_guessing:
        raise OptionError(f"{'lookahead' if request.lookahead else 'draft'} {reason}")


def _processors(given: object) -> tuple[LogitsProcessor, ...]:
    if not isinstance(given, Sequence) or not all(map(callable, given)):
        raise OptionError("logits_processors must be a list of callables (tokens, logits) -> logits")
    return tuple(given)


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be True or False, not {shown(value)}")


def _check_guessing(lookahead: object, draft: object) -> None:
    _check_flag("lookahead", lookahead)
    if draft is not None and not isinstance(draft, Model):
        raise OptionError(f"draft must be a model from mlxgen.load(), not {type(draft).__name__}")
    if lookahead and draft is not None:
        raise OptionError("lookahead and draft cannot be used together; give one of them")
