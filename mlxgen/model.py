"""Loaded models: the Model record, load(), and a model's prompts as token ids."""

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
    """A loaded model. end_tokens: the token ids that end an answer."""

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

    revision: a branch, tag or commit on the hub. Missing files are downloaded into huggingface_hub's cache. Raises
    ModelError with the reason and what to do.
    """
    from mlxgen.weights import open_model

    return open_model(name, revision=revision)


def encode_prompt(model: Model, prompt: object) -> list[int]:
    """The token ids of a prompt, which is text, or a list or array of ids.

    Raises OptionError for anything else, and for ids outside the vocabulary.
    """
    if isinstance(prompt, bytes) or not isinstance(prompt, Iterable):
        raise OptionError(f"a prompt must be text or a list of token ids, not {type(prompt).__name__}")
    ids: list[Any]
    if isinstance(prompt, str):
        ids = model.tokenizer.encode(prompt)
    else:
        ids = prompt.tolist() if hasattr(prompt, "tolist") else list(prompt)  # MLX or NumPy array
    size = model.config.vocab_size
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, Integral) or not 0 <= int(token) < size:
            raise OptionError(f"token id {token!r} is outside the vocabulary (0 to {size - 1})")
    return [int(token) for token in ids]


def start_token(model: Model) -> int:
    """The token for an empty prompt: the model's start token, otherwise an end token, as in transformers.

    Raises OptionError if the model has neither.
    """
    start = model.config.bos_token_id
    if start is None:
        start = min(model.end_tokens, default=None)
    if start is None:
        raise OptionError("the prompt is empty, and the model has no start or end token to begin with; give a prompt")
    return start
