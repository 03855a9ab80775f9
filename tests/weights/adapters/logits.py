"""Our logits with an adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlxgen.network.decoder import GPT2
from mlxgen.weights.adapters.adapter import open_adapter
from mlxgen.weights.load import build_decoder, folder_weights, with_adapter

from ...support.adapters import IDS


def decoder_with(model: Path, adapter: Path, *, packed: bool = False) -> GPT2:
    return build_decoder(with_adapter(folder_weights(model), open_adapter(adapter)), packed=packed)


def logits_of(decoder: GPT2) -> Any:
    return np.array(decoder(mx.array([IDS]))[0])


def assert_close(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=1e-5)
