"""How fast, how large: prefill and decode measured on one side at a time, ours or a peer's, each in its own process.

Peers run as their users run them: mlx-lm without our BLAS, transformers on torch, CTranslate2 on its own kernels. All
sides get the same weights from one folder and the same random prompt, compute in float32 on the CPU, and choose
greedily with no end token.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxgen.errors import MlxgenError, OptionError

SIDES = ("mlxgen", "mlx-lm", "transformers", "ctranslate2")
NEEDED = {"transformers": ("torch", "transformers"), "ctranslate2": ("torch", "transformers", "ctranslate2")}
SHORT_PROMPT = 8  # tokens before a decode through the whole context
REACH = 16  # tokens on either side of a context length whose durations count for it


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of one side. Tokens per second, seconds, bytes.

    first_token: from the prompt's ids to the first token, the model being loaded. load: opening the folder.
    decode counts the tokens after the first one. memory: the process's peak resident size. seconds: what each token
    took, the first one with its prompt.
    """

    side: str
    batch_size: int
    prompt_tokens: int
    new_tokens: int
    load: float
    first_token: float
    prefill_tps: float
    decode_tps: float
    memory: int
    seconds: list[float] = field(repr=False)


def check_peers(sides: list[str]) -> None:
    """Raise OptionError for a peer that is not installed."""
    for side in sides:
        if packages := missing(side):
            raise OptionError(f"{side} is measured with {' and '.join(packages)}: pip install {' '.join(packages)}")


def missing(side: str) -> list[str]:
    """The packages that a side is measured with and that are not installed."""
    return [name for name in NEEDED.get(side, ()) if find_spec(name) is None]


def check_fits(folder: Path, prompt_tokens: int, new_tokens: int) -> None:
    """Raise OptionError for a run that is longer than the model's context."""
    from mlxgen.network.config import read_config

    positions = read_config(folder).n_positions
    if prompt_tokens + new_tokens > positions:
        raise OptionError(
            f"{prompt_tokens} prompt tokens and {new_tokens} new ones are more than the model's {positions} positions;"
            " lower --prompt-tokens or --max-tokens"
        )


def measure(side: str, folder: Path, *, prompt_tokens: int, new_tokens: int, batch_size: int = 1) -> Measurement:
    """Run one side once in a fresh process. Raises MlxgenError with the last line of what it said if it fails."""
    if side not in SIDES:
        raise OptionError(f"unknown peer {side!r}; known are {', '.join(SIDES[1:])}")
    environment = dict(os.environ) if side == "mlxgen" else {**os.environ, "MLXGEN_BLAS": "off"}
    command = [
        sys.executable,
        "-m",
        "mlxgen.cli.bench.side",
        side,
        folder,
        prompt_tokens,
        new_tokens,
        batch_size,
    ]
    done = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise MlxgenError(f"{side} could not be measured: {said}")
    return Measurement(side, batch_size, prompt_tokens, new_tokens, **json.loads(done.stdout.splitlines()[-1]))


def compare(
    sides: list[str], folder: Path, *, prompt_tokens: int, new_tokens: int, batch_size: int = 1, runs: int = 3
) -> Iterator[Measurement]:
    """Every side in turn, A B A B, so that a slow moment of the machine falls on all of them."""
    for _ in range(runs):
        for side in sides:
            yield measure(side, folder, prompt_tokens=prompt_tokens, new_tokens=new_tokens, batch_size=batch_size)


def median(measurements: list[Measurement], side: str) -> dict[str, float]:
    """The median of each number over one side's runs."""
    rows = [asdict(m) for m in measurements if m.side == side]
    numbers = ("load", "first_token", "prefill_tps", "decode_tps", "memory")
    return {name: statistics.median(row[name] for row in rows) for name in numbers}


def decode(sides: list[str], folder: Path, runs: int = 3) -> Iterator[Measurement]:
    """Every side in turn, from a short prompt to the model's last position. Raises OptionError for a tiny model."""
    return compare(sides, folder, prompt_tokens=SHORT_PROMPT, new_tokens=longest_decode(folder), runs=runs)


def longest_decode(folder: Path) -> int:
    """How many tokens fit after a short prompt. Raises OptionError for fewer than two."""
    from mlxgen.network.config import read_config

    new = read_config(folder).n_positions - SHORT_PROMPT
    if new < 2:
        raise OptionError(f"{folder}: a decode over the context needs a model of {SHORT_PROMPT + 2} positions or more")
    return new


def tps_at(run: Measurement, context: int) -> float:
    """Decode tokens per second at a context length: by the median duration of the tokens around it."""
    at = context - run.prompt_tokens  # the token that is computed from so much context
    if not 1 <= at < len(run.seconds):
        last = run.prompt_tokens + len(run.seconds) - 1
        raise OptionError(f"nothing was decoded at context {context}; the run has {run.prompt_tokens + 1} to {last}")
    return run.batch_size / statistics.median(run.seconds[max(1, at - REACH) : at + REACH + 1])


def ratio(run: Measurement, context: int = 1000, against: int = 100) -> float:
    """Tokens per second at one context length against another, both from one run."""
    return tps_at(run, context) / tps_at(run, against)


def curve(runs: list[Measurement]) -> list[tuple[int, float]]:
    """Context length and decode tokens per second, the median over one side's runs, through their whole context."""
    first = runs[0].prompt_tokens + 1
    contexts = range(first, first + len(runs[0].seconds) - 1, 2 * REACH)
    return [(context, statistics.median(tps_at(run, context) for run in runs)) for context in contexts]


def random_folder(folder: Path, **sizes: Any) -> Path:
    """Write a GPT-2 of any shape with random weights (the 124M shape by default) that every side opens."""
    from mlxgen.network.config import GPT2Config
    from mlxgen.network.decoder import GPT2

    folder.mkdir(parents=True, exist_ok=True)
    config = GPT2Config.from_dict({"model_type": "gpt2", **sizes})
    mx.random.seed(0)
    weights = {}
    for name, value in _flat(GPT2(config).parameters()):
        weights[name] = mx.random.normal(value.shape) * 0.02 if value.ndim == 2 else value
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    entries = {
        "model_type": "gpt2",
        "n_ctx": config.n_positions,
        "activation_function": config.activation_function,
        "vocab_size": config.vocab_size,
        "n_positions": config.n_positions,
        "n_embd": config.n_embd,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "eos_token_id": None,
        "bos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(entries))
    return folder


def bandwidth(megabytes: int = 256, runs: int = 5) -> float:
    """Bytes per second at which this device reads memory: the best of several one-row products over a large matrix.

    In both layouts, because a BLAS may read one of them faster.
    """
    side = math.isqrt(megabytes * 1024 * 1024 // 4)
    matrix, row = mx.ones((side, side)), mx.ones((1, side))
    mx.eval(matrix, row)
    products = (lambda: mx.eval(row @ matrix), lambda: mx.eval(row @ matrix.T))
    return matrix.nbytes / min(_seconds(product) for product in products for _ in range(runs + 1))


def bytes_per_step(folder: Path, context: int, rows: int = 1) -> int:
    """Bytes that one decode step must read: every weight but the embeddings' other rows, and each row's cache."""
    from mlxgen.device import compute_dtype, on_cpu
    from mlxgen.network.config import read_config
    from mlxgen.weights.conversion.plan import nbytes
    from mlxgen.weights.files.headers import read_headers
    from mlxgen.weights.layouts import match

    config = read_config(folder)
    layout = match(read_headers(folder), config)
    stored = layout.sources["model.wte.weight"].tensor.dtype
    itemsize = compute_dtype(mx.float32 if stored == "F32" else mx.float16).size
    unread = config.n_positions + (0 if config.tie_word_embeddings else config.vocab_size)
    weights = itemsize * (config.n_parameters - unread * config.n_embd)
    if layout.packed and not on_cpu():
        weights = nbytes(layout)
    return weights + rows * context * config.cache_bytes_per_token(itemsize)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _flat(tree: Any) -> list[tuple[str, mx.array]]:
    from mlx.utils import tree_flatten

    return list(tree_flatten(tree))
