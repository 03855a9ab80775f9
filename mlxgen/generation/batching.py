"""Many prompts at once: continuous batching.

Every row has a context, rules and a key of its own; the network takes all rows' newest tokens in one pass, so its
weights are read once for all of them. A row that ends makes room for the next prompt at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Unpack

import mlx.core as mx

from mlxgen import device
from mlxgen.errors import MlxgenError, OptionError, check_whole
from mlxgen.generation.answer import SESSION, Options, prompt_ids, refuse_guesses
from mlxgen.generation.batch_row import Row
from mlxgen.generation.context import PREFILL_CHUNK
from mlxgen.generation.results import Generation
from mlxgen.generation.session import Session
from mlxgen.model import Model
from mlxgen.network.batch_cache import BatchCache
from mlxgen.sampling.chooser import sample_seeds

MEMORY_FACTS = "/proc/meminfo"
MOST_ROWS = 32  # more rows gain little: by then arithmetic, not reading the weights, takes the time

NO_GUESSES = "is for one prompt at a time: leave it out of a batch, whose prompts share their passes"


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt with options of its own, over those of the batch (but for max_kv_size, keep, overflow, prefill_chunk).

    num_samples: how many answers; None for the batch's number. skip: samples, counted from 0, that are not wanted.
    """

    prompt: str | Sequence[int]
    options: Options = field(default_factory=Options)
    num_samples: int | None = None
    skip: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class BatchGeneration(Generation):
    """A Generation and where it belongs: index is the prompt's place in the batch, sample the answer's, both from 0.

    peak_memory is the whole batch's, up to the end of this answer.
    """

    index: int
    sample: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A prompt that could not be answered; or, where sample is a number, only that one of its answers."""

    index: int
    error: MlxgenError
    sample: int | None = None


def batch(
    model: Model,
    prompts: Iterable[str | Sequence[int] | Request],
    *,
    batch_size: int | None = None,
    ordered: bool = False,
    num_samples: int = 1,
    **options: Unpack[Options],
) -> Iterator[BatchGeneration]:
    """Answer many prompts; yields each answer when it is finished, or in the order of the prompts.

    prompts: any iterable, read as rows become free. Options are those of generate() but for progress; a Request has its
    own. The answer to a prompt does not depend on its neighbours: it is what generate() gives for the same seed. (Up to
    rounding: sums over another number of rows differ in the last bits, so tokens level to those bits may swap.)
    batch_size: rows at once; None for what fits into memory. num_samples: answers to each prompt, which share its
    prefill; their seeds follow from the seed as those of `mlxgen generate` do.
    Raises OptionError or ContextError for a bad prompt when it is reached; outcomes() goes on past it.
    """
    found = outcomes(model, prompts, batch_size=batch_size, ordered=ordered, num_samples=num_samples, **options)
    return _raising(found)


def outcomes(
    model: Model,
    prompts: Iterable[str | Sequence[int] | Request | MlxgenError],
    *,
    batch_size: int | None = None,
    ordered: bool = False,
    num_samples: int = 1,
    **options: Unpack[Options],
) -> Iterator[BatchGeneration | Failure]:
    """As batch(), but a prompt that cannot be answered gives a Failure, and the others go on.

    An error in a prompt's place is its Failure, in its turn.
    """
    if "progress" in options:
        raise OptionError("progress is not an option of a batch; count its answers")
    refuse_guesses(options, NO_GUESSES)
    Session(model, **_shared(options))  # raises for what no prompt could have
    if batch_size is None:
        batch_size = fitting_batch_size(model, options.get("max_kv_size"))
    check_whole("batch_size", batch_size, 1)
    check_whole("num_samples", num_samples, 1)
    found = _run(Table(model, options), enumerate(_rows(model, prompts, num_samples, options)), batch_size)
    return _in_order(found) if ordered else (outcome for _, outcome in found)


def fitting_batch_size(model: Model, max_kv_size: int | None = None) -> int:
    """How many rows of full length fit into half the free memory, MOST_ROWS at most."""
    config = model.config
    positions = min(config.n_positions, max_kv_size or config.n_positions)
    cache = config.cache_bytes_per_token(model.decoder.model.wpe.weight.dtype.size) * positions
    logits = 8 * 4 * config.vocab_size  # float32, and what the rules make of them
    return max(1, min(MOST_ROWS, _free_memory() // 2 // (cache + logits)))


class Table:
    """The rows that are being answered, row i in slot i, each with a choice that nobody has read yet."""

    def __init__(self, model: Model, options: Options) -> None:
        self._decoder, self._n_positions = model.decoder, model.config.n_positions
        self._slots = BatchCache(model.config.n_layer, options.get("max_kv_size"), options.get("keep", 0))
        self.rows: list[Row] = []

    def add(self, row: Row) -> None:
        self._slots.join(row.session.cache)
        for layer in row.session.cache:
            layer.keys = layer.values = None  # they live in the slot now
        self.rows.append(row)

    def remove(self, row: Row) -> None:
        at, last = self.rows.index(row), self.rows.pop()
        if last is not row:
            self.rows[at] = last
        self._slots.leave(at)

    def pause(self) -> list[Row]:
        """Remove the rows whose unread token is not to be processed: it is the last, or has no position left."""
        full = {row for row, offset in zip(self.rows, self._slots.offsets, strict=True) if offset >= self._n_positions}
        paused = [row for row in self.rows if row.ends_next or row in full]
        for row in paused:
            self.remove(row)
        return paused

    def step(self) -> None:
        """Send every row's unread token through the network in one pass, and choose again from the logits."""
        if not self.rows:
            return
        tokens = mx.concatenate([row.choice.token for row in self.rows])[:, None]  # [n, 1]
        self._slots.begin_step()
        logits = self._decoder.head(self._decoder.hidden(tokens, self._slots.layers)[:, -1])  # [n, V]
        for at, row in enumerate(self.rows):
            row.choose(logits[at : at + 1], self._slots.filled(at))
        mx.async_eval(*(array for row in self.rows for array in row.unread))


def _run(
    table: Table, source: Iterator[tuple[int, Row | Failure]], batch_size: int
) -> Iterator[tuple[int, BatchGeneration | Failure]]:
    """Answer the source's rows. Whatever comes from the source has a number, which its outcome has too."""
    with device.wired_memory():
        yield from _answered(table, source, batch_size)


def _answered(
    table: Table, source: Iterator[tuple[int, Row | Failure]], batch_size: int
) -> Iterator[tuple[int, BatchGeneration | Failure]]:
    """Let rows in, send a step for all of them, and read the step before it while the device works."""
    numbers: dict[Row, int] = {}
    mx.reset_peak_memory()
    while True:
        budget = PREFILL_CHUNK  # prompt tokens between two steps: new rows must not hold up the others
        while len(table.rows) < batch_size and budget > 0 and (arrival := next(source, None)):
            number, row = arrival
            if isinstance(row, Failure):
                yield number, row
            elif row.limit < 1:
                yield number, _finished(row)
            else:
                table.add(row)
                numbers[row] = number
                budget -= len(row.session.tokens) if row.sample == 0 else 1
        if not table.rows:
            return
        unread = [(row, row.choice, row.cache_length) for row in table.rows]
        paused = table.pause()
        table.step()
        for row, choice, cache_length in unread:
            outcome: BatchGeneration | Failure | None = None
            try:
                if row.read(choice, cache_length):
                    outcome = _finished(row)
                elif row in paused:
                    row.slide()
                    table.add(row)
            except MlxgenError as error:
                outcome = Failure(row.index, error, row.sample)
            if outcome:
                if row in table.rows:
                    table.remove(row)
                yield numbers.pop(row), outcome


def _rows(
    model: Model, prompts: Iterable[str | Sequence[int] | Request | MlxgenError], num_samples: int, options: Options
) -> Iterator[Row | Failure]:
    """The prompts' rows, each with its first choice sent off. A prompt is processed when its first row is asked for."""
    for index, prompt in enumerate(prompts):
        if isinstance(prompt, MlxgenError):
            yield Failure(index, prompt)
            continue
        request = prompt if isinstance(prompt, Request) else Request(prompt)
        try:
            yield from _samples(model, index, request, num_samples, options)
        except MlxgenError as error:
            yield Failure(index, error)


def _samples(model: Model, index: int, request: Request, num_samples: int, options: Options) -> Iterator[Row]:
    if fixed := set(request.options) & {*SESSION, "progress"}:
        raise OptionError(f"{min(fixed)} belongs to the whole batch, not to one prompt")
    own: Options = {**options, **request.options}
    refuse_guesses(request.options, NO_GUESSES)
    session = Session(model, **_shared(options))
    session.extend(prompt_ids(model, request.prompt))
    seeds = sample_seeds(own.get("seed"), num_samples if request.num_samples is None else request.num_samples)
    logits = None
    for sample, seed in enumerate(seeds):
        if sample in request.skip:
            continue
        row = Row(session, own, seed, request.prompt, index, sample)  # checks the options before any work
        if row.limit >= 1:
            logits = session.prefill() if logits is None else logits
            row.begin(session.fork() if len(seeds) > 1 else session, logits)
        yield row


def _finished(row: Row) -> BatchGeneration:
    record = row.finish()
    known = {entry.name: getattr(record, entry.name) for entry in fields(record)}
    return BatchGeneration(**known, index=row.index, sample=row.sample)


def _in_order(found: Iterator[tuple[int, BatchGeneration | Failure]]) -> Iterator[BatchGeneration | Failure]:
    """Hold back what comes before its turn."""
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


def _shared(options: Options) -> dict:  # type: ignore[type-arg]
    return {name: value for name, value in options.items() if name in SESSION}


def _free_memory() -> int:
    """Bytes that may still be taken: what Metal recommends, or what the system has free."""
    if not device.on_cpu():
        return int(mx.device_info()["max_recommended_working_set_size"]) - mx.get_active_memory()
    with suppress(OSError, StopIteration), open(MEMORY_FACTS) as facts:
        # Linux: what is free, and what it gives back from its caches of files
        return 1024 * next(int(line.split()[1]) for line in facts if line.startswith("MemAvailable:"))
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
