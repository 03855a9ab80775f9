"""The rule of sliding on its own: which tokens stay when the position table is full."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlxgen.generation.sliding import last_slide, slide_at

from ..support import oracles


@given(half=st.integers(1, 9), keep=st.integers(0, 8), n=st.integers(1, 120))
def test_the_last_slide_leaves_what_sliding_one_token_at_a_time_leaves(half, keep, n):
    n_positions, keep, tokens = 2 * half, min(keep, half - 1), list(range(n))
    expected = oracles.slid_context(tokens, n_positions, keep)
    slide = last_slide(n_positions, n, n_positions, keep)
    if slide is None:
        assert expected == tokens
    else:
        assert expected == tokens[:keep] + tokens[slide.start :]
        assert slide.size == keep + slide.at - slide.start == half


@given(
    half=st.integers(2, 9),
    keep=st.integers(0, 1),
    at=st.integers(18, 60),
    points=st.lists(st.integers(0, 70), max_size=12, unique=True).map(sorted),
)
def test_it_begins_at_the_first_preferred_point_of_the_newest_half_and_never_after_the_last_token(
    half, keep, at, points
):
    slide = slide_at(at, 2 * half, keep, points)
    newest = range(at - (half - keep), at)
    assert slide.start == next((point for point in points if point in newest), newest.start)
    assert 0 < slide.at - slide.start <= half - keep


def test_a_point_where_the_table_ends_is_not_taken():
    """There would be no token left after the pinned ones."""
    assert slide_at(16, 16, 2, [16]).start == slide_at(16, 16, 2).start == 10
    assert slide_at(16, 16, 2, [10, 16]).start == 10
    assert slide_at(16, 16, 2, [15, 16]).start == 15
