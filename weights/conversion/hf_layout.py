"""The tensors of a model folder as transformers saves it: GPT-2's Conv1D weights, [in, out]."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mlxgen.safetensors_header import TensorEntry
from mlxgen.weights.files.writer import TensorGroup
from mlxgen.weights.layouts import HEAD, PRODUCTS


def as_conv1d(group: TensorGroup) -> TensorGroup:
    """A parameter under the name and in the shape that GPT2LMHeadModel has it."""
    (name, entry), *_ = group.tensors.items()  # unquantized parameters have one tensor
    turned = name.endswith(PRODUCTS)
    shape = entry.shape[::-1] if turned else entry.shape
    published = name if name == HEAD else f"transformer.{name.removeprefix('model.')}"

    def compute() -> Sequence[mx.array]:
        (array,) = group.compute()
        return [array.T if turned else array]

    return TensorGroup({published: TensorEntry(entry.dtype, shape)}, compute)
