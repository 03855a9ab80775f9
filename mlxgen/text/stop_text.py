"""Stop texts: end the answer before one of them, however the text arrives in pieces."""

from collections.abc import Iterable, Sequence

from mlxgen.errors import OptionError


def unfinished(text: str, patterns: Iterable[str]) -> int:
    """Length of the longest end of ``text`` that is a beginning of a pattern, but not all of it."""
    longest = 0
    for pattern in patterns:
        for length in range(min(len(pattern) - 1, len(text)), longest, -1):
            if text.endswith(pattern[:length]):
                longest = length
                break
    return longest


class StopText:
    """Lets text through up to the first stop text, and never a character of one.

    The stop text that is complete first decides; of several that are complete at the same character, the
    longest. So what is shown does not depend on how the text was cut into pieces.

    Raises OptionError for a stop text that is empty or not text.
    """

    def __init__(self, stops: str | Sequence[str] = ()) -> None:
        if not isinstance(stops, Sequence):
            raise OptionError(f"a stop text must be text, not {stops!r}")
        self.stops = (stops,) if isinstance(stops, str) else tuple(stops)
        for stop in self.stops:
            if not isinstance(stop, str):
                raise OptionError(f"a stop text must be text, not {stop!r}")
            if not stop:
                raise OptionError("a stop text must not be empty: it would end every answer at once")
        self._held = ""
        self.hit = False

    def feed(self, text: str) -> str:
        """The text that is safe to show after ``text`` arrived. After a hit, nothing more comes out."""
        if self.hit:
            return ""
        # What is held is the longest end that may become a stop text, so no stop text begins before it.
        text = self._held + text
        found = [(at + len(stop), at) for stop in self.stops if (at := text.find(stop)) >= 0]
        if found:
            self.hit, self._held = True, ""
            return text[: min(found)[1]]
        safe = len(text) - unfinished(text, self.stops)
        self._held = text[safe:]
        return text[:safe]

    def flush(self) -> str:
        """The text still held back: at the end of the answer it did not become a stop text."""
        rest, self._held = self._held, ""
        return rest
