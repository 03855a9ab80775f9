"""Watching an answer from outside: what the loop reports as it goes, for tracing."""

from __future__ import annotations

from typing import Any, Protocol

import mlx.core as mx

from mlxgen.sampling.chooser import Choice


class Observer(Protocol):
    """Is told of each stage. Arrays are graphs that nobody has evaluated; an observer may evaluate them."""

    def before_layers(self, ids: mx.array) -> None:
        """The tokens ids [1, L] go through the layers next."""

    def after_layers(self, hidden: mx.array) -> None:
        """The last hidden states [1, L, D]; the caches have taken the positions in."""

    def after_head(self, logits: mx.array) -> None:
        """The logits of the newest positions [n, V]."""

    def after_choice(
        self, context: Any, logits: mx.array, adjusted: mx.array, key: mx.array | None, choice: Choice
    ) -> None:
        """A token was chosen from float32 logits [1, V], which follow what the context's cache holds now.

        adjusted: the logits after processors, penalties and bias. key: the step's random key, None for greedy.
        """
