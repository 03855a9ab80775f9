"""Bans: the rules that forbid tokens whatever their logits, as pure functions and as the state of some rows.

Logits are float32 [B, V]; a banned token gets the logit -inf. recent: the newest tokens of each row, int32 [B, W], the
newest last; a row with fewer tokens begins with -1. Each rule is a graph on these arrays, so no step waits for a token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from numbers import Integral

import mlx.core as mx

from mlxgen.errors import OptionError, shown

NONE, ANY = -1, -2  # in place of an id: no token, and any or no token

Word = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bans:
    """What a request forbids, by the token ids of its model. The defaults forbid nothing.

    no_repeat_ngram: this many tokens in a row never occur twice among the newest `window`. bad_words: sequences that
    must not be completed. min_tokens: how many tokens are chosen before one of the end_tokens may be.
    """

    no_repeat_ngram: int = 0
    window: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    end_tokens: tuple[int, ...] = ()
    suppress_tokens: tuple[int, ...] = ()

    @property
    def memory(self) -> int:
        """How many of the newest tokens decide what is forbidden next."""
        longest = max([2, *map(len, self.bad_words)]) - 1 if self.bad_words else 0
        return max(longest, self.window if self.no_repeat_ngram else 0)


class Banning:
    """The bans of some rows, all with the same rules: what their tokens so far make of them.

    context: the tokens of the first row. Others can join. What it holds is replaced and never written to,
    so a shallow copy goes its own way.
    """

    def __init__(self, bans: Bans, context: Sequence[int]) -> None:
        self.bans = bans
        self._chosen = [0]  # how many tokens each row has chosen
        newest = list(context[-bans.memory :]) if bans.memory else []
        self._recent = mx.array([[NONE] * (bans.memory - len(newest)) + newest], dtype=mx.int32)
        if bans.bad_words:
            self._begun, self._last = word_arrays(bans.bad_words)

    def apply(self, logits: mx.array) -> dict[str, mx.array]:
        """The logits [n, V] after each ban that is in force, by the rule's name and in order."""
        bans = self.bans
        stages: dict[str, mx.array] = {}
        if bans.no_repeat_ngram:
            logits = stages["no_repeat_ngram"] = ban_repeated_ngrams(logits, self._recent, bans.no_repeat_ngram)
        if bans.bad_words:
            logits = stages["bad_words"] = ban_words(logits, self._recent, self._begun, self._last)
        early = [chosen < bans.min_tokens for chosen in self._chosen]
        if any(early) and bans.end_tokens:
            banned = ban_tokens(logits, bans.end_tokens)
            logits = stages["min_tokens"] = banned if all(early) else mx.where(mx.array(early)[:, None], banned, logits)
        if bans.suppress_tokens:
            stages["suppress_tokens"] = ban_tokens(logits, bans.suppress_tokens)
        return stages

    @property
    def state(self) -> list[mx.array]:
        """The arrays that the next ban depends on."""
        return [self._recent] if self.bans.memory else []

    def remember(self, tokens: mx.array) -> None:
        """Add the tokens [n] that were chosen, one for each row."""
        self._chosen = [chosen + 1 for chosen in self._chosen]
        if self.bans.memory:
            self._recent = mx.concatenate([self._recent[:, 1:], tokens.astype(mx.int32)[:, None]], axis=1)

    def join(self, other: Banning) -> None:
        """Add the other's rows after those that are here."""
        self._chosen = self._chosen + other._chosen
        if self.bans.memory:
            self._recent = mx.concatenate([self._recent, other._recent])

    def reorder(self, rows: mx.array) -> None:
        """Let the rows go on from these rows, int [n], which have all chosen the same number of tokens."""
        self._chosen = self._chosen[:1] * len(rows)
        self._recent = self._recent[rows]

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self._chosen = [self._chosen[row] for row in rows]
        if self.bans.memory:
            self._recent = self._recent[mx.array(list(rows), dtype=mx.int32)]


def ban_tokens(logits: mx.array, tokens: Sequence[int]) -> mx.array:
    """Ban these tokens."""
    ids = mx.broadcast_to(mx.array(list(tokens), dtype=mx.int32), (len(logits), len(tokens)))
    return mx.put_along_axis(logits, ids, mx.array(-mx.inf), axis=-1)


def ban_repeated_ngrams(logits: mx.array, recent: mx.array, n: int) -> mx.array:
    """Ban every token that would make the newest n tokens a repetition (Paulus et al., 2017; as in transformers)."""
    B, W = recent.shape
    if n > W:
        return logits
    if n == 1:
        return _ban_where(logits, mx.array(True), recent)
    windows = mx.as_strided(recent, (B, W - n + 1, n), (W, 1, 1))  # all n-grams, in order
    repeats = mx.all(windows[..., :-1] == recent[:, None, W - n + 1 :], axis=-1)  # they begin like the next one
    return _ban_where(logits, repeats, windows[..., -1])


def word_arrays(words: Sequence[Sequence[int]]) -> tuple[mx.array, mx.array]:
    """Sequences for `ban_words`: what each begins with, [K, M], ANY before a shorter one; and its last token [K]."""
    longest = max(2, *map(len, words))
    begun = [[ANY] * (longest - len(word)) + list(word[:-1]) for word in words]
    return mx.array(begun, dtype=mx.int32), mx.array([word[-1] for word in words], dtype=mx.int32)


def ban_words(logits: mx.array, recent: mx.array, begun: mx.array, last: mx.array) -> mx.array:
    """Ban the last token of each sequence that the newest tokens have begun. See `word_arrays`; needs W >= M."""
    newest = recent[:, None, recent.shape[1] - begun.shape[1] :]  # [B, 1, M]
    complete = mx.all((newest == begun) | (begun == ANY), axis=-1)  # [B, K]
    return _ban_where(logits, complete, mx.broadcast_to(last, complete.shape))


def _ban_where(logits: mx.array, banned: mx.array, ids: mx.array) -> mx.array:
    """Ban the ids [B, n] where banned is true. An id of NONE stands for no token."""
    B, V = logits.shape
    ids = mx.where(banned & (ids != NONE), ids, V)  # one column more takes what is not banned
    mask = mx.put_along_axis(mx.zeros((B, V + 1), dtype=mx.bool_), ids, mx.array(True), axis=-1)
    return mx.where(mask[:, :V], -mx.inf, logits)


def checked_words(words: object) -> tuple[Word, ...]:
    """The bad words as texts and tuples of token ids. Raises OptionError."""
    given: object = () if words is None else (words,) if isinstance(words, str) else words
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise OptionError(f"bad_words must be a text, or a list of texts and lists of token ids, not {shown(words)}")
    return tuple(_checked_word(word) for word in given)


def _checked_word(word: object) -> Word:
    if isinstance(word, str):
        if not word:
            raise OptionError("bad_words has an empty text, which would ban every token")
        return word
    if not isinstance(word, Sequence) or isinstance(word, bytes):
        raise OptionError(f"each of bad_words must be a text or a list of token ids, not {shown(word)}")
    if not word:
        raise OptionError("bad_words has an empty list of token ids, which would ban every token")
    return _checked_ids("bad_words", word)


def checked_tokens(name: str, tokens: object) -> tuple[int, ...]:
    """Token ids, each once. Raises OptionError that names the option."""
    if tokens is None:
        return ()
    if not isinstance(tokens, Collection) or isinstance(tokens, str | bytes):
        raise OptionError(f"{name} must be a list of token ids, not {shown(tokens)}")
    return tuple(dict.fromkeys(_checked_ids(name, tokens)))


def _checked_ids(name: str, ids: Collection[object]) -> tuple[int, ...]:
    checked = []
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, Integral) or int(token) < 0:
            raise OptionError(f"{name} has {shown(token)} in place of a token id, a whole number from 0")
        checked.append(int(token))
    return tuple(checked)
