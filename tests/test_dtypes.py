"""The table of number types agrees with MLX, NumPy, PyTorch and safetensors."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch

from mlxgen import dtypes
from mlxgen.dtypes import BY_NAME, BY_TAG, TABLE, WEIGHT_TYPES, DType

IN_MLX = [dtype for dtype in TABLE if not dtype.tag.startswith("F8")]


@pytest.mark.parametrize("dtype", TABLE)
def test_pytorch_and_safetensors_agree_on_the_name_and_the_size(tmp_path: Path, dtype: DType) -> None:
    tensor = torch.zeros(3).to(getattr(torch, dtype.name))
    assert tensor.dtype.itemsize == dtype.itemsize
    file = tmp_path / "x.safetensors"
    safetensors.torch.save_file({"x": tensor}, file)
    with safetensors.safe_open(file, "pt") as stored:
        assert stored.get_slice("x").get_dtype() == dtype.tag


@pytest.mark.parametrize("dtype", IN_MLX)
def test_mlx_agrees_on_the_name_and_the_size(dtype: DType) -> None:
    assert dtype.mlx.size == dtype.itemsize
    assert dtypes.name_of(dtype.mlx) == dtype.name
    if dtype.name != "bfloat16":
        assert np.dtype(dtype.name).itemsize == dtype.itemsize


def test_each_type_is_found_by_tag_and_by_name() -> None:
    assert all(BY_TAG[dtype.tag] is dtype and BY_NAME[dtype.name] is dtype for dtype in TABLE)
    assert len(BY_TAG) == len(BY_NAME) == len(TABLE)
    assert all(mx.issubdtype(dtype.mlx, mx.floating) for dtype in WEIGHT_TYPES)
