"""When the position table is full: which tokens a slide keeps. Pure arithmetic on positions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slide:
    """The cache is rebuilt when `at` tokens have been processed: from the first `keep` and those from `start` on."""

    at: int
    keep: int
    start: int

    @property
    def size(self) -> int:
        """Positions that the rebuilt cache holds."""
        return self.keep + self.at - self.start


def slide_at(at: int, n_positions: int, keep: int, points: Sequence[int] = ()) -> Slide:
    """The slide that happens when `at` tokens have filled a table of n_positions.

    Half a table stays: the first `keep` tokens and the newest. points: places, in order, where the newest part should
    rather begin; it then begins at the first of them that leaves no more than half a table.
    """
    start = at - (n_positions // 2 - keep)
    later = bisect_left(points, start)
    if later < len(points) and points[later] < at:
        start = points[later]
    return Slide(at, keep, start)


def last_slide(full_at: int, end: int, n_positions: int, keep: int, points: Sequence[int] = ()) -> Slide | None:
    """The last of the slides that happen before `end` tokens are processed, when the table is full at full_at.

    None if there is room for all of them. Only the last one's outcome matters, so those before need not be carried out.
    """
    slide = None
    while end > full_at:
        slide = slide_at(full_at, n_positions, keep, points)
        full_at += n_positions - slide.size
    return slide
