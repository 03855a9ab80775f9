"""Many prompts at a time: continuous batching.

Each row has its own context, sampling rules and random key. The newest tokens of all rows go through the network in one
pass, so its weights are read once for all of them. When a row ends, the next prompt takes its slot at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Unpack, cast

import mlx.core as mx

from mlxgen import device
from mlxgen.errors import MlxgenError, OptionError, check_whole
from mlxgen.generation.active_rows import ActiveRows, unread_choices
from mlxgen.generation.batch_row import BatchRow
from mlxgen.generation.context import Context
from mlxgen.generation.request import (
    CONTEXT,
    PREFILL_CHUNK,
    Options,
    check_options,
    refuse_guesses,
    sample_seeds,
)
from mlxgen.generation.results import Generation
from mlxgen.model import Model

MOST_ROWS = 32  # more rows gain little: the time then goes into arithmetic, not into reading the weights

NO_GUESSES = "works for one prompt at a time; leave it out of a batch"


class Prompt:
    """A prompt whose options override those of the batch: Prompt("Once", temperature=0, max_tokens=20).

    num_samples: how many answers; None for the batch's number. skip: samples to leave out, counted from 0.
    max_kv_size, keep, overflow, prefill_chunk and progress can only be set for the whole batch.
    """

    __slots__ = ("num_samples", "options", "prompt", "skip")

    def __init__(
        self,
        prompt: str | Sequence[int],
        *,
        num_samples: int | None = None,
        skip: frozenset[int] = frozenset(),
        **options: Unpack[Options],
    ) -> None:
        self.prompt, self.num_samples, self.skip = prompt, num_samples, skip
        self.options = options


@dataclass(frozen=True, slots=True, repr=False)
class BatchGeneration(Generation):
    """A Generation with the index of its prompt in the batch and its sample number, both counted from 0.

    peak_memory is that of the whole batch, up to the end of this answer.
    """

    index: int
    sample: int


@dataclass(frozen=True, slots=True)
class Failure:
    """The error of a prompt that could not be answered. If sample is a number, only that sample failed."""

    index: int
    error: MlxgenError
    sample: int | None = None


def batch(
    model: Model,
    prompts: Iterable[str | Sequence[int] | Prompt],
    *,
    batch_size: int | None = None,
    ordered: bool = False,
    num_samples: int = 1,
    **options: Unpack[Options],
) -> Iterator[BatchGeneration]:
    """Answer many prompts. Yields each answer when it is finished or, if ordered, in the order of the prompts.

    prompts: any iterable, read as rows become free. The options are those of generate() without progress, lookahead and
    draft; a Prompt can have its own.
    batch_size: how many rows at a time; None for as many as fit into memory. num_samples: answers per prompt, which
    share its prefill; their seeds are derived from the seed, as in `mlxgen generate`.
    The answer to a prompt does not depend on the other prompts: it is what generate() gives for the same seed, up to
    rounding. (Sums over a different number of rows are rounded differently, so tokens whose logits are that close may
    swap: to about seven digits in float32, to a few steps of the format in float16 and bfloat16.)
    Raises OptionError or ContextError for an invalid prompt when it is reached; outcomes() continues after it.
    """
    found = outcomes(model, prompts, batch_size=batch_size, ordered=ordered, num_samples=num_samples, **options)
    return _raising(found)


def outcomes(
    model: Model,
    prompts: Iterable[str | Sequence[int] | Prompt | MlxgenError],
    *,
    batch_size: int | None = None,
    ordered: bool = False,
    num_samples: int = 1,
    **options: Unpack[Options],
) -> Iterator[BatchGeneration | Failure]:
    """Like batch(), but a prompt that cannot be answered yields a Failure, and the others continue.

    An error in the place of a prompt yields a Failure with that error.
    """
    shared = check_options(**options)
    if shared.progress is not None:
        raise OptionError("progress is not available in a batch; count its answers instead")
    refuse_guesses(shared, NO_GUESSES)
    shared.context.check_table(model.config.n_positions)
    shared.check_against(model)
    if batch_size is None:
        batch_size = fitting_batch_size(model, shared.context.max_kv_size)
    check_whole("batch_size", batch_size, 1)
    check_whole("num_samples", num_samples, 1)
    active = ActiveRows(model, shared.context, batch_size)
    found = _run(active, enumerate(_rows(model, prompts, num_samples, options)), batch_size)
    return _in_order(found) if ordered else (outcome for _, outcome in found)


def fitting_batch_size(model: Model, max_kv_size: int | None = None) -> int:
    """How many rows of full length fit into half the free memory, MOST_ROWS at most."""
    config = model.config
    positions = min(config.n_positions, max_kv_size or config.n_positions)
    cache = config.cache_bytes_per_token(model.decoder.compute_dtype.size) * positions
    logits = 8 * 4 * config.vocab_size  # float32, and the arrays that the sampling rules compute from them
    return max(1, min(MOST_ROWS, device.free_memory() // 2 // (cache + logits)))


def _run(
    active: ActiveRows, source: Iterator[tuple[int, BatchRow | Failure]], batch_size: int
) -> Iterator[tuple[int, BatchGeneration | Failure]]:
    """Answer the rows of the source. Each outcome has the number that its row has in the source."""
    try:
        with device.wired_memory():
            for outcome in _answered(active, source, batch_size):
                active.send_off()
                yield outcome
    finally:
        active.free_memory()


def _answered(
    active: ActiveRows, source: Iterator[tuple[int, BatchRow | Failure]], batch_size: int
) -> Iterator[tuple[int, BatchGeneration | Failure]]:
    """Repeat: let new rows join, send a step of all rows to the device, and read the step before it meanwhile."""
    numbers: dict[BatchRow, int] = {}
    mx.reset_peak_memory()
    while True:
        rows, paused = active.rows, active.pause()  # whoever comes now takes the slots of paused rows
        arrivals: list[BatchRow] = []
        # Prompt tokens between two steps, so that new rows do not hold up the others.
        budget = PREFILL_CHUNK if len(active) else math.inf
        while len(active) + len(arrivals) < batch_size and budget > 0 and (arrival := next(source, None)):
            number, row = arrival
            if isinstance(row, Failure):
                yield number, row
            elif row.limit < 1:
                yield number, _finished(row)
            else:
                arrivals.append(row)
                numbers[row] = number
                budget -= len(row.context.tokens)
        active.admit(arrivals)
        rows += arrivals
        if not rows:
            return
        paused += active.pause()
        lengths = {row: row.cache_length for row in rows}
        unread = unread_choices(rows)
        active.step()
        chosen = unread.read()
        for row in rows:
            outcome: BatchGeneration | Failure | None = None
            try:
                if row.read(chosen[row], lengths[row]):
                    outcome = _finished(row)
                elif row in paused:
                    active.slide(row)
            except MlxgenError as error:
                outcome = Failure(row.index, error, row.sample)
            if outcome:
                if row in active:
                    active.remove(row)
                yield numbers.pop(row), outcome


def _rows(
    model: Model, prompts: Iterable[str | Sequence[int] | Prompt | MlxgenError], num_samples: int, options: Options
) -> Iterator[BatchRow | Failure]:
    """The rows of all prompts, none of them processed yet."""
    for index, prompt in enumerate(prompts):
        if isinstance(prompt, MlxgenError):
            yield Failure(index, prompt)
            continue
        try:
            yield from _samples(
                model, index, prompt if isinstance(prompt, Prompt) else Prompt(prompt), num_samples, options
            )
        except MlxgenError as error:
            yield Failure(index, error)


def _samples(model: Model, index: int, prompt: Prompt, num_samples: int, options: Options) -> Iterator[BatchRow]:
    """One row per sample of a prompt, after its options have been checked."""
    if fixed := set(prompt.options) & {*CONTEXT, "progress"}:
        raise OptionError(f"{min(fixed)} can only be set for the whole batch, not for one prompt")
    request = check_options(**cast(Options, {**options, **prompt.options}))
    refuse_guesses(request, NO_GUESSES)
    request = request.with_prompt(model, prompt.prompt)
    seeds = sample_seeds(request.seed, num_samples if prompt.num_samples is None else prompt.num_samples)
    wanted = [(sample, seed) for sample, seed in enumerate(seeds) if sample not in prompt.skip]
    context = Context(model, request.context)
    context.extend(request.ids)
    for sample, seed in wanted:
        more = sample != wanted[-1][0]
        yield BatchRow(context.fork(), replace(request, seed=seed), index, sample, has_more_samples=more)


def _finished(row: BatchRow) -> BatchGeneration:
    record = row.finish()
    known = {entry.name: getattr(record, entry.name) for entry in fields(record)}
    return BatchGeneration(**known, index=row.index, sample=row.sample)


def _in_order(found: Iterator[tuple[int, BatchGeneration | Failure]]) -> Iterator[BatchGeneration | Failure]:
    """Yield the outcomes in the order of their numbers, holding back those that come early."""
    early: dict[int, BatchGeneration | Failure] = {}
    turn = 0
    for number, outcome in found:
        early[number] = outcome
        while turn in early:
            yield early.pop(turn)
            turn += 1


def _raising(found: Iterator[BatchGeneration | Failure]) -> Iterator[BatchGeneration]:
    for outcome in found:
        if isinstance(outcome, Failure):
            raise outcome.error
        yield outcome
