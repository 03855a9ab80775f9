"""Summaries of several runs: medians, and tokens per second over the context."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict

from mlxgen.cli.bench.batches import BatchMeasurement
from mlxgen.cli.bench.beams import BeamMeasurement
from mlxgen.cli.bench.measure import Measurement
from mlxgen.errors import OptionError

REACH = 16  # tokens on either side of a context length whose durations count for it


def medians_of(
    runs: Sequence[Measurement] | Sequence[BatchMeasurement] | Sequence[BeamMeasurement],
) -> dict[str, dict[str, float]]:
    """For each side, the median of each number over its runs."""
    by_side: dict[str, list[dict[str, float]]] = {}
    for run in runs:
        entries = asdict(run)
        numbers = {name: value for name, value in entries.items() if isinstance(value, (int, float))}
        by_side.setdefault(run.side, []).append(numbers)
    return {
        side: {name: statistics.median(run[name] for run in numbers) for name in numbers[0]}
        for side, numbers in by_side.items()
    }


def tps_at(run: Measurement, context: int) -> float:
    """Decode tokens per second at a context length, from the median duration of the tokens around it."""
    at = context - run.prompt_tokens  # the token with so many before it
    if not 1 <= at < len(run.seconds):
        last = run.prompt_tokens + len(run.seconds) - 1
        raise OptionError(f"nothing was decoded at context {context}; the run has {run.prompt_tokens + 1} to {last}")
    return 1 / statistics.median(run.seconds[max(1, at - REACH) : at + REACH + 1])


def ratio(run: Measurement, context: int = 1000, against: int = 100) -> float:
    """Tokens per second at one context length divided by those at another, in one run."""
    return tps_at(run, context) / tps_at(run, against)


def curve(runs: list[Measurement]) -> list[tuple[int, float]]:
    """Points (context length, decode tokens per second) over the whole context, the median of one side's runs."""
    first = runs[0].prompt_tokens + 1
    contexts = range(first, first + len(runs[0].seconds) - 1, 2 * REACH)
    return [(context, statistics.median(tps_at(run, context) for run in runs)) for context in contexts]
