"""A loaded model: the record that every verb takes first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from mlxgen.errors import OptionError
from mlxgen.network.config import GPT2Config
from mlxgen.network.decoder import GPT2
from mlxgen.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Model:
    """What generation needs. `end_tokens` are the token ids that end an answer."""

    name: str
    config: GPT2Config
    decoder: GPT2
    tokenizer: Tokenizer
    end_tokens: frozenset[int]

    def __repr__(self) -> str:
        c = self.config
        return f"Model({self.name!r}, n_layer={c.n_layer}, n_embd={c.n_embd}, n_head={c.n_head})"


def load(name: str = "fairy-tales", *, revision: str | None = None) -> Model:
    """Open a model: "fairy-tales" (bundled), a local folder, a hub id, or an alias such as "gpt2".

    revision: a branch, tag or commit on the hub. What is missing is downloaded into huggingface_hub's cache. Raises
    ModelError with the reason and the way out.
    """
    from mlxgen.weights import open_model

    return open_model(name, revision=revision)


def encode_prompt(model: Model, prompt: object) -> list[int]:
    """The ids of text, or of a list or array of ids. Raises OptionError for anything else, or ids of no token."""
    if isinstance(prompt, bytes) or not isinstance(prompt, Iterable):
        raise OptionError(f"a prompt must be text or a list of token ids, not {type(prompt).__name__}")
    ids: list[Any]
    if isinstance(prompt, str):
        ids = model.tokenizer.encode(prompt)
    else:
        ids = prompt.tolist() if hasattr(prompt, "tolist") else list(prompt)  # MLX's and NumPy's arrays
    size = model.config.vocab_size
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, Integral) or not 0 <= int(token) < size:
            raise OptionError(f"token id {token!r} is outside the vocabulary (0 to {size - 1})")
    return [int(token) for token in ids]


def start_token(model: Model) -> int:
    """The token that an empty prompt begins with: the model's start token, or else an end token, as in transformers.

    Raises OptionError for a model that has neither.
    """
    start = model.config.bos_token_id
    if start is None:
        start = min(model.end_tokens, default=None)
    if start is None:
        raise OptionError("the prompt is empty and the model has no start or end token to begin from; give a prompt")
    return start
