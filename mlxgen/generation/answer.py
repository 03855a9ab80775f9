"""Text in, text out: generate() and stream()."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypedDict, Unpack

from mlxgen.errors import OptionError, check_whole
from mlxgen.generation.context import Overflow, Progress
from mlxgen.generation.loop import Guesser, Step, steps
from mlxgen.generation.results import Generation, Recorder
from mlxgen.generation.session import Session
from mlxgen.model import Model, token_ids
from mlxgen.sampling.chooser import Chooser, LogitsProcessor, checked_seed
from mlxgen.sampling.samplers import Sampling
from mlxgen.text.stop_text import StopText

MAX_TOKENS = 256


class Options(TypedDict, total=False):
    """The keyword arguments of generate() and stream(); what each rule does stands in mlxgen.samplers."""

    max_tokens: int  # 256
    temperature: float  # 0.8; 0 is greedy
    top_k: int | None  # 40
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: dict[int, float] | None
    logits_processors: Sequence[LogitsProcessor]  # callables (tokens [n], logits [1, V]) -> logits, run first
    seed: int | None  # None draws a fresh one
    stop: str | Sequence[str]  # texts that end the answer and are not shown
    ignore_eos: bool  # go on past end tokens
    logprobs: int  # how many candidates each step reports
    max_kv_size: int | None  # positions of a rotating cache
    keep: int  # how many of its first positions are pinned
    overflow: Overflow  # "stop" or "slide" at the end of the position table
    prefill_chunk: int  # prompt tokens processed at once
    lookahead: bool  # guess from the text so far, and check several tokens in one pass: the same text, sooner
    draft: Model | None  # a smaller model of the same vocabulary that guesses
    progress: Progress | None  # called with (done, total) while the prompt is processed


SAMPLING = tuple(Sampling.__dataclass_fields__)
SESSION = ("max_kv_size", "keep", "overflow", "prefill_chunk")


def prompt_ids(model: Model, prompt: str | Sequence[int]) -> list[int]:
    """The prompt's token ids. An empty prompt starts from the model's start token, as transformers does."""
    ids = token_ids(model, prompt)
    if ids:
        return ids
    start = model.config.bos_token_id
    if start is None:
        start = min(model.end_tokens, default=None)
    if start is None:
        raise OptionError("the prompt is empty and the model has no start or end token to begin from; give a prompt")
    return [start]


def stream(model: Model, prompt: str | Sequence[int] = "", **options: Unpack[Options]) -> Iterator[Step]:
    """Generate a token at a time. The prompt is text or token ids; see Options for the keyword arguments.

    Bad options raise OptionError, and a prompt that does not fit raises ContextError, here and not at the first step.
    """
    ids = prompt_ids(model, prompt)
    session = Session(model, **_of(options, SESSION))
    session.extend(ids)
    return session_steps(session, options)


def generate(model: Model, prompt: str | Sequence[int] = "", **options: Unpack[Options]) -> Generation:
    """Generate a whole answer: as stream(), gathered into one record."""
    ids = prompt_ids(model, prompt)
    options["seed"] = seed = checked_seed(options.get("seed"))
    session = Session(model, **_of(options, SESSION))
    session.extend(ids)
    recorder = Recorder(prompt, ids, seed)
    for step in session_steps(session, options):
        recorder.add(step)
    return recorder.finish()


def session_steps(session: Session, options: Options, chooser: Callable[..., Chooser] = Chooser) -> Iterator[Step]:
    """The loop on a session, with its request's options checked before any work. chooser: who applies the rules."""
    model = session.model
    if unknown := set(options) - set(Options.__annotations__):
        raise OptionError(f"unknown option {min(unknown)!r}; the options are {', '.join(Options.__annotations__)}")
    max_tokens = options.get("max_tokens", MAX_TOKENS)
    check_whole("max_tokens", max_tokens, 1)
    stop = options.get("stop", ())
    StopText(stop)  # raises here, and not at the first step
    choose = chooser(
        Sampling(**_of(options, SAMPLING)),
        checked_seed(options.get("seed")),
        session.tokens,
        model.config.vocab_size,
        processors=options.get("logits_processors") or (),
        candidates=options.get("logprobs", 0),
    )
    return steps(
        session,
        choose,
        max_tokens=max_tokens,
        end_tokens=frozenset() if options.get("ignore_eos") else model.end_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        progress=options.get("progress"),
        guesser=_guesser(session, options),
    )


def refuse_guesses(options: Options, reason: str) -> None:
    """Raise OptionError where tokens are asked to be guessed and cannot be."""
    for name in ("lookahead", "draft"):
        if options.get(name):
            raise OptionError(f"{name} {reason}")


def _guesser(session: Session, options: Options) -> Guesser | None:
    """Who guesses, if anyone. Raises OptionError."""
    lookahead, draft = options.get("lookahead", False), options.get("draft")
    if not lookahead and draft is None:
        return None
    from mlxgen.generation.draft import Draft
    from mlxgen.generation.lookahead import NGrams

    if not isinstance(lookahead, bool):
        raise OptionError(f"lookahead must be True or False, not {lookahead!r}")
    if lookahead and draft is not None:
        raise OptionError("lookahead and draft are two ways to guess; give one of them")
    if not session.is_own_cache:
        raise OptionError("lookahead and draft need the session's own cache: leave out cache=")
    return NGrams(session.tokens) if draft is None else Draft(session, draft)


def _of(options: Options, names: Sequence[str]) -> dict:  # type: ignore[type-arg]
    return {name: value for name, value in options.items() if name in names}
