"""Slides: which tokens to keep when the position table is full. Pure arithmetic on positions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slide:
    """After `at` processed tokens, the cache is rebuilt from the first `keep` tokens and those from `start` to `at`."""

    at: int
    keep: int
    start: int

    @property
    def size(self) -> int:
        """How many positions the rebuilt cache holds."""
        return self.keep + self.at - self.start


def slide_at(at: int, n_positions: int, keep: int, points: Sequence[int] = ()) -> Slide:
    """The slide to make when `at` tokens have filled a table of n_positions.

    It keeps half a table: the first `keep` tokens and the newest. points: preferred beginnings of the newest part,
    sorted; it begins at the first of them that keeps no more than half a table, if there is one.
    """
    start = at - (n_positions // 2 - keep)
    later = bisect_left(points, start)
    if later < len(points) and points[later] < at:
        start = points[later]
    return Slide(at, keep, start)


def last_slide(full_at: int, end: int, n_positions: int, keep: int, points: Sequence[int] = ()) -> Slide | None:
    """The last slide on the way to `end` processed tokens, with the table full at `full_at`. None if all of them fit.

    The result depends only on the last slide, so the ones before it need not be carried out.
    """
    slide = None
    while end > full_at:
        slide = slide_at(full_at, n_positions, keep, points)
        full_at += n_positions - slide.size
    return slide
