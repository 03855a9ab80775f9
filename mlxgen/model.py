"""Loaded models: the Model record, load(), and a model's prompts as token ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

from mlxgen.errors import ContextError, OptionError
from mlxgen.network.config import GPT2Config
from mlxgen.network.decoder import GPT2
from mlxgen.text.tokenizer import Tokenizer

LONG_TOKEN = 32  # characters; few tokens are longer


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model.

    end_tokens: the token ids that end an answer. source: what other programs open it by, a folder or a hub id.
    adapter: the folder or hub id of the adapter that was merged into it, and adapter_digest a hash of its files.
    """

    name: str
    config: GPT2Config
    decoder: GPT2
    tokenizer: Tokenizer
    end_tokens: frozenset[int]
    source: str = ""
    adapter: str = ""
    adapter_digest: str = ""

    @property
    def label(self) -> str:
        """What it is called in results: its name, and the adapter's where one was merged into it."""
        return f"{self.name} with {self.adapter}" if self.adapter else self.name

    def __repr__(self) -> str:
        c = self.config
        return f"Model({self.label!r}, n_layer={c.n_layer}, n_embd={c.n_embd}, n_head={c.n_head})"


def load(
    name: str = "fairy-tales",
    *,
    revision: str | None = None,
    dtype: str | None = None,
    adapter: str | Path | None = None,
) -> Model:
    """Open a model: "fairy-tales" (bundled), a local folder, a hub id, or an alias such as "gpt2".

    dtype: the type to compute in, "float32", "float16" or "bfloat16"; None is that of the weights on a GPU, and
    float32 on the CPU, where others are far slower. Logits are always computed in float32.
    revision: a branch, tag or commit on the hub. Missing files are downloaded into huggingface_hub's cache.
    adapter: the folder or hub id of an adapter of PEFT or mlx-lm (LoRA, DoRA, or mlx-lm's full fine-tune), which is
    merged into the weights. Raises ModelError with the reason and what to do.
    """
    from mlxgen.weights import open_model

    return open_model(name, revision=revision, dtype=dtype, adapter=adapter)


def encode_prompt(model: Model, prompt: object, *, begins: bool = False, must_fit: bool = False) -> list[int]:
    """The token ids of a prompt: text, a list or array of ids, or what a tokenizer of transformers returns for a text.

    begins: whether the prompt is the beginning of a context. Text then gets the start tokens that the tokenizer itself
    adds. must_fit: refuse a text far too long for the position table at once; tokenizing it could take minutes and
    gigabytes. Raises ContextError for such a text, OptionError for anything else and for ids outside the vocabulary.
    """
    if isinstance(prompt, str):
        if must_fit:
            _check_length(model, prompt)
        ids = model.tokenizer.encode(prompt)
        return _checked(model, model.tokenizer.with_start(ids) if begins else ids)
    if isinstance(prompt, Mapping):
        if "input_ids" not in prompt:
            raise OptionError("a prompt must be text, a list of token ids, or a mapping with input_ids")
        rows = _listed(prompt["input_ids"])
        return _checked(model, _listed(rows[0]) if len(rows) == 1 and isinstance(rows[0], Iterable) else rows)
    return _checked(model, _listed(prompt))


def too_long(length: str, model: Model) -> str:
    """The message for a prompt with more tokens than the position table. length: how many, in words."""
    return (
        f"the prompt has {length} tokens, more than the model's {model.config.n_positions:,} positions; shorten it, or"
        ' let the context slide (overflow="slide", in the terminal --overflow slide)'
    )


def _check_length(model: Model, text: str) -> None:
    positions = model.config.n_positions
    if len(text) > LONG_TOKEN * positions and (longest := model.tokenizer.longest_token):
        least = len(text) // longest
        if least > positions:
            raise ContextError(too_long(f"at least {least:,}", model))


def _listed(prompt: object) -> list[Any]:
    """The elements of a list or of an array of MLX, NumPy or torch."""
    if isinstance(prompt, bytes | str) or not isinstance(prompt, Iterable):
        raise OptionError(f"a prompt must be text or a list of token ids, not {type(prompt).__name__}")
    listed = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    return list(listed) if isinstance(listed, Iterable) else [listed]


def _checked(model: Model, ids: list[Any]) -> list[int]:
    size = model.config.vocab_size
    for token in ids:
        if isinstance(token, Iterable) and not isinstance(token, str | bytes):
            raise OptionError(
                f"a prompt is one list of token ids, and this one has {len(ids)} rows: give one of its rows,"
                " or all of them to mlxgen.batch()"
            )
        if isinstance(token, bool) or not isinstance(token, Integral) or not 0 <= int(token) < size:
            raise OptionError(f"token id {token!r} is outside the vocabulary (0 to {size - 1})")
    return [int(token) for token in ids]


def start_tokens(model: Model) -> list[int]:
    """The tokens for an empty prompt: those that the tokenizer adds before a text, otherwise the model's start token,
    otherwise an end token, as in transformers.

    Raises OptionError if the model has none of them.
    """
    if model.tokenizer.start_ids:
        return list(model.tokenizer.start_ids)
    ends = min(model.end_tokens, default=None)
    start = next((id for id in (model.config.bos_token_id, model.tokenizer.bos_token_id, ends) if id is not None), None)
    if start is None:
        raise OptionError("the prompt is empty, and the model has no start or end token to begin with; give a prompt")
    return [start]
