"""A session: a context that is added to, answered, taken back, forked and saved.

A rewind takes positions out of the cache where it can, and otherwise empties it: the next answer then processes what
the rule of sliding says, no more.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import mlx.core as mx
from mlx.utils import tree_map

from mlxgen.errors import OptionError
from mlxgen.generation.context import CachedContext
from mlxgen.model import Model, token_ids

if TYPE_CHECKING:
    from mlxgen.generation.answer import Options
    from mlxgen.generation.loop import Step
    from mlxgen.generation.results import Generation


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a session to come back to: how many tokens it had, and how many of them were processed."""

    tokens: int
    processed: int


class Session(CachedContext):
    """The context and what of it each layer has processed. Only tokens not yet in the cache are ever processed.

    max_kv_size, keep: a rotating cache of that many positions, its first `keep` pinned; None keeps every position.
    overflow: at the end of the position table, "stop" or "slide" (start again from the first `keep` tokens and the
    newest half table). prefill_chunk: how many prompt tokens go through the network at once.
    cache: an empty cache of mlx-lm's protocol, one entry a layer, instead of our own. Raises OptionError.
    """

    drafting: Session | None = None  # a draft model's session on the same context

    def extend(self, addition: str | Sequence[int]) -> None:
        """Add text or token ids to the context; they are processed when something is generated.

        Text is tokenized by itself: no token spans the place where it was added. Raises ContextError when it does not
        fit, OptionError for ids outside the vocabulary; the session then stays as it was.
        """
        ids = token_ids(self.model, addition)
        self._check_room(len(self.tokens) + len(ids))
        self.settle()
        self.tokens.extend(ids)

    def reset_to(self, prompt: str | Sequence[int]) -> None:
        """Make the prompt the whole context, keeping what the cache holds of a beginning that both share."""
        ids = token_ids(self.model, prompt)
        self._check_room(len(ids))
        shared = shared_length(self.tokens, ids)
        self.rewind(len(self.tokens) - shared)
        self.tokens.extend(ids[shared:])

    def generate(self, addition: str | Sequence[int] = "", **options: Unpack[Options]) -> Generation:
        """Extend, then generate an answer, which joins the context.

        The options are those of mlxgen.generate() but for the four that the session was made with. Generation.prompt
        is the addition, and its prompt_tokens those that were not processed before.
        """
        from mlxgen.generation.results import Recorder
        from mlxgen.sampling.chooser import checked_seed

        options["seed"] = seed = checked_seed(options.get("seed"))
        steps = self.stream(addition, **options)
        recorder = Recorder(addition, self.tokens[self.processed :], seed)
        for step in steps:
            recorder.add(step)
        return recorder.finish()

    def stream(self, addition: str | Sequence[int] = "", **options: Unpack[Options]) -> Iterator[Step]:
        """As generate(), a token at a time. Wherever the caller stops, the session has every token it was given.

        Whatever else is done with the session ends the answer: its next step is an OptionError. A fork() does not.
        Options that are refused are refused here, and the session stays as it was.
        """
        from mlxgen.generation.answer import SESSION, prompt_ids, session_steps

        if fixed := set(options) & set(SESSION):
            raise OptionError(f"{min(fixed)} belongs to the session: give it to Session(...)")
        if self.unknown and not self.tokens and not addition:
            raise OptionError("the file does not say which tokens its cache holds; extend the session first")
        empty = not (self.tokens or self.unknown or addition)
        before = self.mark()
        self.extend(prompt_ids(self.model, "") if empty else addition)
        try:
            return session_steps(self, options)
        except BaseException:
            self.rewind(to=before)
            raise

    def mark(self) -> Mark:
        """The present place, for rewind(to=...)."""
        return Mark(len(self.tokens), self.processed - self.surplus)

    def rewind(self, n_tokens: int | None = None, *, to: Mark | None = None) -> None:
        """Forget the newest n_tokens, or everything since a mark. Raises OptionError when there is no such place.

        The session is then as if they had never come: where the cache can still give their positions back, nothing is
        computed again; where it has dropped older ones since, the next answer processes the context anew.
        """
        if (n_tokens is None) == (to is None):
            raise OptionError("rewind takes a number of tokens or a mark (to=...), one of the two")
        length = to.tokens if to else len(self.tokens) - (n_tokens or 0)
        if isinstance(n_tokens, bool) or not 0 <= length <= len(self.tokens):
            asked = f"to token {length}" if to else f"{n_tokens!r} tokens"
            raise OptionError(f"cannot rewind {asked}: the session has {len(self.tokens)}")
        self.settle()
        self._take_out(self.processed - min(self.processed, to.processed if to else length, length))
        del self.tokens[length:]
        del self.breaks[bisect_left(self.breaks, length + 1) :]

    def fork(self) -> Session:
        """A second session with the same past. The cached arrays are shared until one of the two writes to them."""
        other = copy.copy(self)
        other.tokens, other.breaks = list(self.tokens), list(self.breaks)
        other.cache, other.drafting = [_copied(layer) for layer in self.cache], None
        other.settle()  # in the midst of an answer: without what the loop is ahead
        return other

    def save(self, path: str | Path) -> Path:
        """Write the session as an mlx-lm prompt-cache file; returns the path, which always ends in .safetensors."""
        from mlxgen.generation.session_file import write

        return write(self, path)

    @classmethod
    def load(cls, path: str | Path, model: Model) -> Session:
        """A session from a file that save() or mlx-lm wrote for this model. Raises SessionFileError with the reason."""
        from mlxgen.generation.session_file import read

        return read(path, model)[0]


def shared_length(one: Sequence[int], two: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(one, two, strict=False))
    return next((at for at, (first, second) in pairs if first != second), min(len(one), len(two)))


def _copied(layer: Any) -> Any:
    """One layer's cache with array handles of its own: the memory is shared until one of the two writes to it."""
    other = copy.copy(layer)
    for name, value in vars(layer).items():
        setattr(other, name, tree_map(lambda part: copy.copy(part) if isinstance(part, mx.array) else part, value))
    return other
