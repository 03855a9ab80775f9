"""The steps of an adapter, collected by parameter, and whether they fit the model."""

from __future__ import annotations

from collections.abc import Mapping

from mlxgen.errors import ModelError, printable
from mlxgen.network.config import GPT2Config
from mlxgen.weights.adapters.steps import Addition, LowRank, Replacement, Rows, Step
from mlxgen.weights.layouts import FLOATS, HEAD, Shape, decoder_shapes, listed
from mlxgen.weights.sources.checkpoint import LazyTensor

MOST_NAMES = 3  # of each kind that an error lists


class Fit:
    """Collects the steps of an adapter for a model, and what does not fit.

    shapes: those of the model's parameters, with the head also where it is tied to the embedding.
    """

    def __init__(self, config: GPT2Config, tensors: Mapping[str, LazyTensor]) -> None:
        self.config = config
        self.shapes: dict[str, Shape] = {HEAD: (config.vocab_size, config.n_embd), **decoder_shapes(config)}
        self.steps: dict[str, list[Step]] = {}
        self._names = {id(tensor): name for name, tensor in tensors.items()}
        self._unexpected: list[str] = []
        self._wrong: list[str] = []

    def replace(self, target: str, tensor: LazyTensor, *, transpose: bool = False) -> None:
        """A parameter that was trained as a whole."""
        if self._known(target, tensor):
            shape = self.shapes[target]
            if self._has_shape(tensor, shape[::-1] if transpose else shape):
                self._add(target, Replacement(tensor, transpose))

    def replace_rows(self, target: str, tensor: LazyTensor, rows: list[int]) -> None:
        """Rows of an embedding."""
        if self._known(target, tensor, dimensions=2):
            count, width = self.shapes[target]
            if len(set(rows)) != len(rows) or not all(0 <= row < count for row in rows):
                self._wrong.append(f"the ids of its trained tokens are not ids of this model, from 0 to {count - 1}")
            elif self._has_shape(tensor, (len(rows), width)):
                self._add(target, Rows(tensor, rows))

    def add(self, target: str, tensor: LazyTensor, scale: float) -> None:
        """Numbers to add to a parameter."""
        if self._known(target, tensor) and self._has_shape(tensor, self.shapes[target]):
            self._add(target, Addition(tensor, scale))

    def add_product(
        self,
        target: str,
        left: LazyTensor | None,
        right: LazyTensor | None,
        magnitude: LazyTensor | None,
        *,
        scale: float,
        rank: int,
        transpose: bool,
        columns: bool = False,
    ) -> None:
        """A low-rank layer. rank: what the adapter's config says; see `LowRank` for the others."""
        known = [self._known(target, tensor, dimensions=2) for tensor in (left, right, magnitude) if tensor is not None]
        if not all(known):
            return
        if left is None or right is None:
            alone = left or right or magnitude
            name = self._names[id(alone)]
            self._wrong.append(f"{printable(name, 200)} is present without the rest of its layer")
            return
        out, inner = self.shapes[target][::-1] if transpose else self.shapes[target]
        fits = [self._has_shape(left, (out, rank)), self._has_shape(right, (rank, inner))]
        if magnitude is not None:
            fits.append(self._has_shape(magnitude, (self.shapes[target][1 if columns else 0],)))
        if all(fits):
            self._add(target, LowRank(left, right, scale, transpose, magnitude, columns))

    def unexpected(self, tensor: LazyTensor) -> None:
        """A tensor that has no place in the model."""
        self._unexpected.append(self._names[id(tensor)])

    def check(self, base: str) -> None:
        """Raise ModelError if anything does not fit. base: the model that the adapter was trained on; "" if unknown."""
        kinds = [("the model has no place for ", self._unexpected), ("", self._wrong)]
        problems = "; ".join(kind + listed(names, MOST_NAMES) for kind, names in kinds if names)
        if problems:
            trained = f"; it was trained on {printable(base)}" if base else ""
            raise ModelError(f"does not fit this model: {problems}{trained}")
        if not self.steps:
            raise ModelError("changes nothing: it holds no tensors")

    def _known(self, target: str, tensor: LazyTensor, *, dimensions: int | None = None) -> bool:
        if target in self.shapes and dimensions in (None, len(self.shapes[target])):
            return True
        self.unexpected(tensor)
        return False

    def _has_shape(self, tensor: LazyTensor, shape: Shape) -> bool:
        name = printable(self._names[id(tensor)], 200)
        stored = tensor.stored
        if stored.shape != shape or 0 in shape:
            self._wrong.append(f"{name} has shape {list(stored.shape)}, not {list(shape)}")
        elif stored.dtype not in FLOATS:
            self._wrong.append(f"{name} has type {printable(stored.dtype, 20)}, not {' or '.join(FLOATS)}")
        else:
            return True
        return False

    def _add(self, target: str, step: Step) -> None:
        steps = self.steps.setdefault(target, [])
        if any(type(other) is type(step) for other in steps):
            self._wrong.append(f"it changes {target} twice")
        steps.append(step)
        steps.sort(key=lambda step: step.order)
