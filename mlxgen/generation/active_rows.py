"""The rows of a batch that are being answered: how they are let in, stepped together, and taken out.

Prompts that come in together are processed together: padded on the right to one length, which causal attention never
reads, and what all of them begin with only once. Rows with the same rules share one chooser.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx

from mlxgen.generation.batch_row import BatchRow
from mlxgen.generation.context import shared_length
from mlxgen.generation.request import ContextOptions
from mlxgen.model import Model
from mlxgen.network.batch_cache import BatchCache
from mlxgen.network.cache import KVCache
from mlxgen.sampling.chooser import Choice, Chooser, ChosenToken

WORTH_SHARING = 8  # tokens that prompts must have in common to be processed apart, once


@dataclass(slots=True)
class RuleGroup:
    """Rows that share their rules. The chooser's rows are in the same order."""

    choose: Chooser
    rows: list[BatchRow] = field(default_factory=list)

    def decide(self, logits: mx.array, cache_lengths: Sequence[int]) -> list[mx.array]:
        """Choose each row's next token from logits [n, V]; returns the arrays to evaluate."""
        choice = self.choose(logits)
        for at, (row, cache_length) in enumerate(zip(self.rows, cache_lengths, strict=True)):
            row.set_choice(choice, at, cache_length)
        return [*choice.arrays, *self.choose.state]


@dataclass(frozen=True, slots=True)
class ProcessedPrompt:
    """A prompt that has been processed, in one row of caches that may hold others.

    offset, following: see BatchCache.join. logits [1, V]: those of its last position.
    """

    tokens: list[int]
    caches: list[Any]
    row: int
    offset: int
    following: int
    logits: mx.array


class ActiveRows:
    """Rows in slots of one cache, each with a choice that has not been read."""

    def __init__(self, model: Model, options: ContextOptions, most_rows: int) -> None:
        self._model, self._options = model, options
        self._cache = BatchCache(model.config.n_layer, most_rows, options.max_kv_size, options.keep)
        self._slots: dict[BatchRow, int] = {}
        self._groups: list[RuleGroup] = []
        self._processed: ProcessedPrompt | None = None  # the newest prompt, while samples of it are still to come

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, row: BatchRow) -> bool:
        return row in self._slots

    @property
    def rows(self) -> list[BatchRow]:
        return list(self._slots)

    def admit(self, rows: Sequence[BatchRow]) -> None:
        """Process the prompts of new rows, choose their first tokens, and let them join."""
        chunk, ring = self._options.prefill_chunk, self._options.max_kv_size or self._model.config.n_positions
        self._cache.expect(len(rows))
        together: list[BatchRow] = []
        for row in sorted(rows, key=lambda row: len(row.context.tokens)):
            length = len(row.context.tokens)
            if self._processed and self._processed.tokens == row.context.tokens:
                self._join([row], [self._processed])
            elif length > min(chunk, ring):
                self._join_alone(row, row.context.prefill())
            else:
                if (len(together) + 1) * length > 2 * chunk:  # all are padded to the longest, which is the newest
                    self._join_together(together)
                    together = []
                together.append(row)
        self._join_together(together)
        if rows and not rows[-1].has_more_samples:
            self._processed = None

    def slide(self, row: BatchRow) -> None:
        """Let a paused row with a full position table go on, from a rebuilt cache. Raises ContextError."""
        self._join_alone(row, row.context.prefill_after_full_table())

    def remove(self, row: BatchRow) -> None:
        self._cache.leave(self._slots.pop(row))

    def pause(self) -> list[BatchRow]:
        """Remove and return the rows whose unread token cannot be processed: it is the last, or the table is full."""
        table = self._model.config.n_positions
        paused = [row for row, slot in self._slots.items() if row.ends_next or self._cache.offsets[slot] >= table]
        for row in paused:
            group = next(group for group in self._groups if row in group.rows)
            row.choose = group.choose.only(group.rows.index(row))  # it may slide and come back
            self.remove(row)
        return paused

    def step(self) -> None:
        """Send the unread tokens of all rows through the network in one pass, and choose the next tokens."""
        self._close_gaps()
        if not self._slots:
            self._cache.drop_buffers()  # no step evaluates what joined them since the last one
            return
        tokens = _unread_tokens(sorted(self._slots, key=self._slots.__getitem__))[:, None]  # [n, 1]
        self._cache.begin_step()
        decoder = self._model.decoder
        logits = decoder.head(decoder.hidden(tokens, self._cache.layers)[:, -1])  # [n, V]
        arrays = []
        for group in self._groups:
            slots = [self._slots[row] for row in group.rows]
            part = logits if len(slots) == len(self._slots) else logits[mx.array(slots)]
            arrays += group.decide(part, [self._cache.filled(slot) for slot in slots])
        mx.async_eval(*arrays)

    def send_off(self) -> None:
        """Let the device compute what is not part of a step: the next step may come from another thread."""
        self._cache.send_off()
        mx.async_eval([group.choose.state for group in self._groups])

    def free_memory(self) -> None:
        """Let go of the buffers, which could otherwise stay until Python's next garbage collection."""
        self._cache.layers.clear()

    def _join_alone(self, row: BatchRow, logits: mx.array) -> None:
        """Let in a row whose context has its own cache. logits [1, V]: those of its last position."""
        caches = row.context.give_cache_away()
        following = int(caches[0].state[-1])  # for both kinds of cache the index of the next position
        self._join([row], [ProcessedPrompt(row.context.tokens, caches, 0, int(caches[0].offset), following, logits)])

    def _join_together(self, rows: Sequence[BatchRow]) -> None:
        """Process several prompts in one pass, each different one once, and let their rows join."""
        if not rows:
            return
        prompts = list({tuple(row.context.tokens): row.context.tokens for row in rows}.values())
        caches, logits = self._prefill(prompts)
        processed = [
            ProcessedPrompt(tokens, caches, at, len(tokens), len(tokens), logits[at : at + 1])
            for at, tokens in enumerate(prompts)
        ]
        self._join(rows, [processed[prompts.index(row.context.tokens)] for row in rows])

    def _join(self, rows: Sequence[BatchRow], prompts: Sequence[ProcessedPrompt]) -> None:
        """Give rows slots and first choices. prompts: each row's own."""
        for row, slot, prompt in zip(rows, self._cache.reserve(len(rows)), prompts, strict=True):
            self._cache.join(slot, prompt.caches, prompt.row, prompt.offset, prompt.following, row.limit)
            self._slots[row] = slot
            if row.has_more_samples:
                self._processed = replace(prompt, tokens=list(prompt.tokens))
        logits = mx.concatenate([prompt.logits for prompt in prompts])  # [n, V]
        groups = _grouped(rows)
        arrays = []
        for group in groups:
            at = [rows.index(row) for row in group.rows]
            part = logits if len(at) == len(rows) else logits[mx.array(at)]
            arrays += group.decide(part, [self._cache.filled(self._slots[row]) for row in group.rows])
        mx.async_eval(*arrays)
        self._cache.send_off()  # at once, so that each join writes into buffers that nobody else uses
        for group in groups:
            shared = next((known for known in self._groups if known.choose.shares_rules(group.choose)), None)
            if shared is None:
                self._groups.append(group)
            else:
                shared.choose.join(group.choose)
                shared.rows += group.rows

    def _prefill(self, prompts: Sequence[list[int]]) -> tuple[list[KVCache], mx.array]:
        """Process different prompts in one pass: their caches, and the logits [n, V] of each one's last position."""
        decoder = self._model.decoder
        caches = [KVCache(growth=1) for _ in range(self._model.config.n_layer)]  # their content is copied, not added to
        shared = min(len(prompt) for prompt in prompts) - 1
        for prompt in prompts[1:]:
            shared = min(shared, shared_length(prompts[0], prompt))
        if len(prompts) == 1 or shared < WORTH_SHARING:
            shared = 0
        else:
            decoder.hidden(mx.array([prompts[0][:shared]]), caches)
            for cache in caches:
                cache.repeat(len(prompts))
        longest = max(len(prompt) for prompt in prompts)
        ids = mx.array([[*prompt[shared:], *[0] * (longest - len(prompt))] for prompt in prompts])  # [n, L]
        hidden = decoder.hidden(ids, caches)
        last = mx.array([len(prompt) - shared - 1 for prompt in prompts])
        return caches, decoder.head(hidden[mx.arange(len(prompts)), last])

    def _close_gaps(self) -> None:
        """Let no slot be free, and put each group's rows in the order of their slots."""
        by_slot = {slot: row for row, slot in self._slots.items()}
        for source, target in self._cache.close_gaps():
            by_slot[target] = by_slot.pop(source)
            self._slots[by_slot[target]] = target
        for group in self._groups:
            there = [at for at, row in enumerate(group.rows) if row in self._slots]
            order = sorted(there, key=lambda at, rows=group.rows: self._slots[rows[at]])  # type: ignore[misc]
            if order != list(range(len(group.rows))):
                group.choose.keep(order)
                group.rows = [group.rows[at] for at in order]
        self._groups = [group for group in self._groups if group.rows]


@dataclass(frozen=True, slots=True)
class UnreadChoices:
    """The newest choices of several rows, before a step replaces them."""

    places: dict[BatchRow, tuple[Choice, int]]

    def read(self) -> dict[BatchRow, ChosenToken]:
        """Wait for them. Rows that share a choice are read together."""
        read: dict[int, list[ChosenToken]] = {}
        for choice, _ in self.places.values():
            if id(choice) not in read:
                read[id(choice)] = choice.read()
        return {row: read[id(choice)][at] for row, (choice, at) in self.places.items()}


def unread_choices(rows: Iterable[BatchRow]) -> UnreadChoices:
    return UnreadChoices({row: (row.choice, row.at) for row in rows})


def _grouped(rows: Iterable[BatchRow]) -> list[RuleGroup]:
    """New rows by their rules. Each group's chooser is the first row's, which the others joined."""
    groups: list[RuleGroup] = []
    for row in rows:
        group = next((group for group in groups if group.choose.shares_rules(row.choose)), None)
        if group is None:
            groups.append(RuleGroup(row.choose, [row]))
        else:
            group.choose.join(row.choose)
            group.rows.append(row)
    return groups


def _unread_tokens(rows: Sequence[BatchRow]) -> mx.array:
    """The rows' unread tokens: uint32 [n]."""
    choices = {id(row.choice): row.choice for row in rows}
    starts, start = {}, 0
    for key, choice in choices.items():
        starts[key], start = start, start + len(choice.token)
    tokens = [choice.token for choice in choices.values()]
    index = [starts[id(row.choice)] + row.at for row in rows]
    all_tokens = tokens[0] if len(tokens) == 1 else mx.concatenate(tokens)
    return all_tokens if index == list(range(start)) else all_tokens[mx.array(index)]
