"""Sessions: a context that stays open. Each answer becomes part of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from mlxgen.errors import OptionError
from mlxgen.generation.answer import Answer
from mlxgen.generation.context import Context
from mlxgen.generation.one_thread import one_thread
from mlxgen.generation.request import CONTEXT, PREFILL_CHUNK, ContextOptions, Options, Overflow, Request, check_options
from mlxgen.generation.results import Generation
from mlxgen.generation.session_file import read, write
from mlxgen.model import Model
from mlxgen.text.excerpt import excerpt

TOKENS_SHOWN = 10  # of the newest, in a session's repr


class Session(Context):
    """A context that stays open, with its cache. Each call processes only the tokens that are not in the cache yet.

    max_kv_size: size of a rotating cache whose first `keep` positions are pinned; None keeps every position.
    overflow: what happens when the position table is full: "stop", or "slide" (continue from the first `keep` and the
    newest tokens, half a table in total). prefill_chunk: how many prompt tokens go through the network at a time.
    cache: an empty cache to use instead of mlxgen's own, one entry per layer, with mlx-lm's protocol. A session is
    for one thread at a time, see Context; sessions of one model are independent. Raises OptionError.
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

    def __repr__(self) -> str:
        newest = excerpt(self.model.tokenizer.decode(self.tokens[-TOKENS_SHOWN:]))
        return (
            f"Session({self.model.name!r}, tokens={self.untracked + len(self.tokens)},"
            f" cache_length={self.cache_length}, newest={newest})"
        )

    @one_thread
    def generate(self, addition: str | Sequence[int] = "", **options: Unpack[Options]) -> Generation:
        """Extend the context and generate an answer, which becomes part of it.

        The options are those of mlxgen.generate(), except the four that Session() takes. In the result, prompt is the
        addition and prompt_tokens are the tokens that had not been processed before.
        """
        return self.stream(addition, **options).finish()

    @one_thread
    def stream(self, addition: str | Sequence[int] = "", **options: Unpack[Options]) -> Answer:
        """Like generate(), one token at a time. Wherever the caller stops, the session has every token yielded so far.

        Any other use of the session except fork() ends the answer: its next step then raises OptionError. Invalid
        options raise OptionError here, and the session is unchanged.
        """
        if fixed := set(options) & set(CONTEXT):
            raise OptionError(f"{min(fixed)} is an option of the whole session: pass it to Session(...)")
        if self.untracked and not self.tokens and not addition:
            raise OptionError("the session's file does not say which tokens its cache holds; extend the session first")
        joined = bool(self.tokens or self.untracked)
        request = replace(check_options(**options), context=self.options)
        return self.answer(request.with_prompt(self.model, addition, added=joined))

    @one_thread
    def answer(self, request: Request) -> Answer:
        """Add a request's ids to the context and answer it. If this raises, the session is unchanged."""
        request.check_against(self.model)
        before = self.mark()
        self.extend(request.ids)
        try:
            return Answer(self, request)
        except BaseException:
            self.rewind(to=before)
            raise

    @one_thread
    def save(self, path: str | Path) -> Path:
        """Save the session as an mlx-lm prompt-cache file; returns the path, which always ends in .safetensors."""
        return write(self.state, self.model, path)

    @classmethod
    def load(cls, path: str | Path, model: Model) -> Session:
        """Open a session that save() or mlx-lm wrote for this model. Raises SessionFileError with the reason."""
        return cls.from_file(path, model)[0]

    @classmethod
    def from_file(cls, path: str | Path, model: Model) -> tuple[Session, dict[str, Any]]:
        """Like load(), together with the notes saved in the file."""
        return read(path, model, lambda state: cls.from_state(model, state))
