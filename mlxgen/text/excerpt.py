"""A text in a few words, for the repr of what holds it."""

from __future__ import annotations

WIDTH = 60


def excerpt(text: str, width: int = WIDTH) -> str:
    """The text in quotes, on one line, cut after `width` characters."""
    return repr(text if len(text) <= width else text[: width - 1] + "…")
