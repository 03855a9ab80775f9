"""The observer of an answer: what the loop reports while it runs, for tracing."""

from __future__ import annotations

from typing import Any, Protocol

import mlx.core as mx

from mlxgen.sampling.chooser import Choice


class Observer(Protocol):
    """Called at each stage of a step. The arrays are unevaluated; an observer may evaluate them."""

    def before_layers(self, ids: mx.array) -> None:
        """Called before the token ids [1, L] go through the layers."""

    def after_layers(self, hidden: mx.array) -> None:
        """Called with the last hidden states [1, L, D], when the caches hold the new positions."""

    def after_head(self, logits: mx.array) -> None:
        """Called with the logits of the newest positions [n, V]."""

    def after_choice(
        self,
        context: Any,
        logits: mx.array,
        adjusted: dict[str, mx.array],
        key: mx.array | None,
        choice: Choice,
    ) -> None:
        """Called when a token was chosen from float32 logits [1, V], those of the cache's newest position.

        adjusted: the logits after processors, bias and penalties ("adjust"), then after each ban, by its name. key: the
        step's random key, None for greedy.
        """
