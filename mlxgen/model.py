"""A loaded model: the record that every verb takes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxgen.config import GPT2Config
    from mlxgen.decoder import GPT2
    from mlxgen.tokenizer import Tokenizer


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
