"""How likely are many short texts, each after a context: the measurement behind multiple-choice benchmarks.

The texts are known, so a pass gives the logits of all their positions. Texts are processed together, sorted by length
and padded on the right, which causal attention never reads. Where several texts follow the same context, the context
is processed once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from mlxgen.errors import OptionError, check_whole
from mlxgen.forked_process import check_process
from mlxgen.model import Model
from mlxgen.network.cache import KVCache
from mlxgen.network.prefix_cache import continue_prefixes
from mlxgen.scoring import look_up

POSITIONS_AT_ONCE = 4096  # of a pass, padding included: more gain nothing, and a prefix's cache has to fit
MOST_ROWS = 64
LEAST_SAVED = 64  # positions that a common context must save: it takes a pass of its own

Pair = tuple[Sequence[int], Sequence[int]]  # the ids of a context, and of the text after it


@dataclass(frozen=True, slots=True)
class Likelihood:
    """How likely a text is after its context.

    logprobs: natural logarithm of each token's probability. ranks: 1 if the token was the model's most probable one;
    ties go to the lower id.
    """

    logprobs: list[float]
    ranks: list[int]

    @property
    def logprob(self) -> float:
        """Log-probability of the text, in nats."""
        return math.fsum(self.logprobs)

    @property
    def greedy(self) -> bool:
        """Whether each token is the most probable one, so that greedy decoding would write the text."""
        return all(rank == 1 for rank in self.ranks)


@dataclass(slots=True)
class _Row:
    """Tokens that go through the network. wanted: by the pair's number, the tokens to look up at its last positions."""

    tokens: list[int]
    wanted: list[tuple[int, Sequence[int]]] = field(default_factory=list)


@dataclass(slots=True)
class _Group:
    """Rows that begin with the same prefix, which may be empty."""

    prefix: list[int]
    rows: list[_Row]

    @property
    def length(self) -> int:
        return max(len(row.tokens) for row in self.rows)


def score_continuations(
    model: Model, pairs: Sequence[Pair], *, batch_size: int | None = None, max_length: int | None = None
) -> Iterator[tuple[int, Likelihood]]:
    """Score each text after its context. Yields (number of the pair, its likelihood) as they are computed.

    What does not fit into max_length positions (by default, the model's whole table) is cut off at the beginning of
    the context, as lm-evaluation-harness does. batch_size: the most rows in a pass; None for as many as are useful.
    Raises OptionError for an empty context or text and a text longer than max_length, and NumericError for logits that
    are not finite.
    """
    check_process()
    size = model.config.n_positions if max_length is None else max_length
    check_whole("max_length", size, 1, model.config.n_positions)
    check_whole("batch_size", MOST_ROWS if batch_size is None else batch_size, 1)
    for context, text in pairs:
        if not context or not text:
            raise OptionError(f"the {'text' if context else 'context'} has no tokens, so there is nothing to score")
        if len(text) > size:
            raise OptionError(f"a text of {len(text):,} tokens does not fit into {size:,} positions")
    return _scored(model, pairs, size, batch_size or MOST_ROWS)


def _scored(model: Model, pairs: Sequence[Pair], size: int, batch_size: int) -> Iterator[tuple[int, Likelihood]]:
    alone, together = _groups(pairs, size, batch_size)
    for groups in (*_passes(together, batch_size), *_passes(alone, batch_size)):
        yield from _run(model, groups)
        mx.clear_cache()


def _groups(pairs: Sequence[Pair], size: int, batch_size: int) -> tuple[list[_Group], list[_Group]]:
    """The rows to process: each as a group of its own, and those with a common context that is worth a pass."""
    rows_after: dict[tuple[int, ...], dict[tuple[int, ...], _Row]] = defaultdict(dict)
    for number, (context, text) in enumerate(pairs):
        tokens = [*context, *text][-(size + 1) : -1]  # the last token predicts nothing that is asked for
        context_read = tokens[: len(tokens) - len(text) + 1]
        row = rows_after[tuple(context_read)].setdefault(tuple(tokens), _Row(tokens))
        row.wanted.append((number, text))
    alone, together = [], []
    for before, found in rows_after.items():
        rows = list(found.values())
        prefix = list(before[:-1])  # a row has at least one token of its own
        for start in range(0, len(rows), batch_size):
            part = rows[start : start + batch_size]
            if (len(part) - 1) * len(prefix) >= LEAST_SAVED:
                together.append(_Group(prefix, part))
            else:
                alone += [_Group([], [row]) for row in part]
    return alone, together


def _passes(groups: list[_Group], batch_size: int) -> Iterator[list[_Group]]:
    """The groups of each pass: similar lengths, at most batch_size rows and POSITIONS_AT_ONCE positions."""
    chosen: list[_Group] = []
    rows = longest = 0
    for group in sorted(groups, key=lambda group: -group.length):
        more = rows + len(group.rows)
        if chosen and (more > batch_size or more * longest > POSITIONS_AT_ONCE):
            yield chosen
            chosen, rows = [], 0
        longest = group.length if not chosen else longest
        chosen.append(group)
        rows += len(group.rows)
    if chosen:
        yield chosen


def _run(model: Model, groups: list[_Group]) -> Iterator[tuple[int, Likelihood]]:
    """One pass through the network, and one more for the prefixes."""
    rows = [(row, row.tokens[len(group.prefix) :]) for group in groups for row in group.rows]
    cache = None
    if groups[0].prefix:
        prefixes = [group.prefix for group in groups]
        prefix_caches = [KVCache() for _ in model.decoder.layers]
        model.decoder.hidden(_padded(prefixes), prefix_caches)
        owners = [number for number, group in enumerate(groups) for _ in group.rows]
        cache = continue_prefixes(prefix_caches, list(map(len, prefixes)), owners)
    hidden = model.decoder.hidden(_padded([tokens for _, tokens in rows]), cache)  # [rows, L, D]
    L = hidden.shape[1]
    places = [  # of the position before each wanted token
        at * L + place
        for at, (row, tokens) in enumerate(rows)
        for _, text in row.wanted
        for place in range(len(tokens) - len(text), len(tokens))
    ]
    targets = [token for row, _ in rows for _, text in row.wanted for token in text]
    logprobs, ranks = look_up(model, hidden.reshape(-1, hidden.shape[2])[mx.array(places)], targets)
    start = 0
    for row, _ in rows:
        for number, text in row.wanted:
            end = start + len(text)
            yield number, Likelihood(logprobs[start:end], ranks[start:end])
            start = end


def _padded(rows: Sequence[Sequence[int]]) -> mx.array:
    """Rows of ids as one array [rows, L], padded on the right."""
    longest = max(map(len, rows))
    return mx.array([[*row, *[0] * (longest - len(row))] for row in rows])
