"""Memory bandwidth: what this machine reaches, and how much a decode step has to read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx


def memory_bandwidth(megabytes: int = 256, runs: int = 5) -> float:
    """Bytes per second that this device reads: the best of several products of one row with a large matrix.

    Both layouts of the matrix are tried, since a BLAS may read one faster.
    """
    side = math.isqrt(megabytes * 1024 * 1024 // 4)
    matrix, row = mx.ones((side, side)), mx.ones((1, side))
    mx.eval(matrix, row)
    products = (lambda: mx.eval(row @ matrix), lambda: mx.eval(row @ matrix.T))
    return matrix.nbytes / min(_seconds(product) for product in products for _ in range(runs + 1))


def bytes_per_step(folder: Path, context: int, dtype: str | None = None) -> int:
    """Bytes that one decode step has to read: the weights, without unused rows of the embeddings, and the cache."""
    from mlxgen.device import compute_dtype, on_cpu
    from mlxgen.network.config import read_config
    from mlxgen.weights.layouts import read_layout

    config = read_config(folder)
    layout = read_layout(folder, config)
    itemsize = compute_dtype(layout.dtype.mlx, dtype).size
    unread = config.n_positions + (0 if config.tie_word_embeddings else config.vocab_size)
    weights = config.weight_bytes(itemsize) - itemsize * unread * config.n_embd
    if layout.packed and not on_cpu():
        weights = layout.nbytes
    return weights + context * config.cache_bytes_per_token(itemsize)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
