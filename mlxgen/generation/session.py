"""A session: a context that stays, and the answers that join it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from mlxgen.errors import OptionError
from mlxgen.generation.answer import Answer
from mlxgen.generation.context import Context
from mlxgen.generation.request import CONTEXT, PREFILL_CHUNK, ContextOptions, Options, Overflow, Request, check_options
from mlxgen.generation.results import Generation
from mlxgen.generation.session_file import read, write
from mlxgen.model import Model


class Session(Context):
    """The context and what of it each layer has processed. Only tokens not yet in the cache are ever processed.

    max_kv_size, keep: a rotating cache of that many positions, its first `keep` pinned; None keeps every position.
    overflow: at the end of the position table, "stop" or "slide" (start again from the first `keep` tokens and the
    newest half table). prefill_chunk: how many prompt tokens go through the network at once.
    cache: an empty cache of mlx-lm's protocol, one entry a layer, instead of our own. Raises OptionError.
    """

    def __init__(
        self,
        model: Model,
        *,
        max_kv_size: int | None = None,
        keep: int = 0,
        overflow: Overflow = "stop",
        prefill_chunk: int = PREFILL_CHUNK,
        cache: Sequence[Any] | None = None,
    ) -> None:
        super().__init__(model, ContextOptions(max_kv_size, keep, overflow, prefill_chunk), cache)

    def generate(self, addition: str | Sequence[int] = "", **options: Unpack[Options]) -> Generation:
        """Extend, then generate an answer, which joins the context.

        The options are those of mlxgen.generate() but for the four that the session was made with. Generation.prompt
        is the addition, and its prompt_tokens those that were not processed before.
        """
        return self.stream(addition, **options).finish()

    def stream(self, addition: str | Sequence[int] = "", **options: Unpack[Options]) -> Answer:
        """As generate(), a token at a time. Wherever the caller stops, the session has every token it was given.

        Whatever else is done with the session ends the answer: its next step is an OptionError. A fork() does not.
        Invalid options are refused here, and the session stays as it was.
        """
        if fixed := set(options) & set(CONTEXT):
            raise OptionError(f"{min(fixed)} belongs to the session: give it to Session(...)")
        if self.untracked and not self.tokens and not addition:
            raise OptionError("the file does not say which tokens its cache holds; extend the session first")
        joined = bool(self.tokens or self.untracked)
        return self.answer(check_options(**options).with_prompt(self.model, addition, added=joined))

    def answer(self, request: Request) -> Answer:
        """Add a request's ids to the context and answer it. The session stays as it was where that is refused."""
        request.check_against(self.model)
        before = self.mark()
        self.extend(request.ids)
        try:
            return Answer(self, request)
        except BaseException:
            self.rewind(to=before)
            raise

    def save(self, path: str | Path) -> Path:
        """Write the session as an mlx-lm prompt-cache file; returns the path, which always ends in .safetensors."""
        return write(self.state, self.model, path)

    @classmethod
    def load(cls, path: str | Path, model: Model) -> Session:
        """A session from a file that save() or mlx-lm wrote for this model. Raises SessionFileError with the reason."""
        return cls.from_file(path, model)[0]

    @classmethod
    def from_file(cls, path: str | Path, model: Model) -> tuple[Session, dict[str, Any]]:
        """As load(), with the notes that were saved beside the session."""
        return read(path, model, lambda state: cls.from_state(model, state))
