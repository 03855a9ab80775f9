"""Stop texts: they end an answer, and are found in text that arrives in pieces."""

from collections.abc import Iterable, Sequence

from mlxgen.errors import OptionError, shown


def unfinished(text: str, patterns: Iterable[str]) -> int:
    """The length of the longest suffix of ``text`` that is a proper prefix of a pattern."""
    longest = 0
    for pattern in patterns:
        for length in range(min(len(pattern) - 1, len(text)), longest, -1):
            if text.endswith(pattern[:length]):
                longest = length
                break
    return longest


class StopText:
    """A filter that returns the text before the first stop text, and nothing of the stop text or after it.

    The first stop text to be complete counts; if several are complete at the same character, the longest. So the result
    does not depend on how the text is split into pieces. hit: whether a stop text was found.

    Raises OptionError for a stop text that is empty or not text.
    """

    def __init__(self, stops: str | Sequence[str] = ()) -> None:
        if not isinstance(stops, Sequence):
            raise OptionError(f"a stop text must be text, not {shown(stops)}")
        self.stops = (stops,) if isinstance(stops, str) else tuple(stops)
        for stop in self.stops:
            if not isinstance(stop, str):
                raise OptionError(f"a stop text must be text, not {shown(stop)}")
            if not stop:
                raise OptionError("a stop text must not be empty: it would end every answer immediately")
        self._pending = ""
        self.hit = False

    def feed(self, text: str) -> str:
        """Add text; returns the text that cannot be part of a stop text. After a hit, always ""."""
        if self.hit:
            return ""
        # The pending text is the longest end that may become a stop text, so no stop text begins before it.
        text = self._pending + text
        found = [(at + len(stop), at) for stop in self.stops if (at := text.find(stop)) >= 0]
        if found:
            self.hit, self._pending = True, ""
            return text[: min(found)[1]]
        safe = len(text) - unfinished(text, self.stops)
        self._pending = text[safe:]
        return text[:safe]

    def flush(self) -> str:
        """The pending text, at the end of an answer: it did not become a stop text."""
        rest, self._pending = self._pending, ""
        return rest
