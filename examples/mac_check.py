"""Whether mlxgen keeps its promises on this machine's GPU: the first thing to run on a Mac.

    python examples/mac_check.py            # a minute or so
    python examples/mac_check.py --quick    # smaller models

Each check computes something on the GPU and on the CPU, in this one process, with models of random weights. The table
has the largest difference of the two, what may be at most, and the time on both. Exits with 1 if a promise does not
hold. Where there is no GPU (or with MLXGEN_DEVICE=cpu), both sides are the CPU: then it checks the checks.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

# mlxgen comes before MLX, to load a fast BLAS on Linux.
import mlxgen
from mlxgen import device
from mlxgen.generation.session import Session
from mlxgen.network.cache import make_cache
from mlxgen.network.compiled_step import CompiledStep
from mlxgen.network.config import GPT2Config
from mlxgen.network.decoder import GPT2
from mlxgen.sampling.bans import ban_repeated_ngrams, ban_tokens, ban_words, word_arrays
from mlxgen.sampling.probability_cuts import apply_epsilon_cutoff, apply_eta_cutoff, apply_typical_p
from mlxgen.sampling.samplers import apply_temperature, apply_top_k, draw
from mlxgen.weights import convert

# isort: split
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

LAYOUTS = ("bare", "transformer.", "model.")
PRODUCTS = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
FLOAT32_LIMIT = 1e-4  # the promise for float32: largest difference of two logits
PACKED_LIMIT = 1e-3  # packed weights are unpacked inside the product, in another order
HALF_STEPS = 8  # no promise for types of 16 bits; but so many of their steps, at the largest logit, are no rounding
STEP = {"float16": 2**-10, "bfloat16": 2**-7}
KEEP = 4

Work = Callable[[mlxgen.Model], mx.array]


@contextmanager
def on(where: mx.Device) -> Iterator[None]:
    before = mx.default_device()
    mx.set_default_device(where)
    try:
        yield
    finally:
        mx.set_default_device(before)


@dataclass
class Table:
    """Runs the checks, prints a line for each, and remembers which failed."""

    there: mx.Device  # the GPU
    here: mx.Device = field(default_factory=lambda: mx.Device(mx.cpu, 0))
    failed: list[str] = field(default_factory=list)

    def head(self) -> None:
        print(f"{'check':46}{'at most':>9}{'largest':>10}  {'':4}{self.there.type.name:>9} ms{'cpu':>9} ms")

    def compare(
        self,
        name: str,
        folder: Path,
        work: Work,
        reference: Work | None = None,
        *,
        dtype: str = "float32",
        limit: float | None = FLOAT32_LIMIT,
    ) -> None:
        """The logits of `work` on the GPU against those of `reference` on the CPU, which computes in float32.

        limit: None for steps of the type.
        """
        found, seconds = run(self.there, folder, work, dtype)
        wanted, cpu_seconds = run(self.here, folder, reference or work, "float32")
        most = HALF_STEPS * STEP[dtype] * float(np.abs(wanted).max()) if limit is None else limit
        finite = bool(np.isfinite(found).all())
        self._line(name, most, float(np.abs(found - wanted).max()) if finite else np.inf, seconds, cpu_seconds)

    def same(self, name: str, folder: Path, work: Work, reference: Work) -> None:
        """The tokens of two ways, both on the GPU and in float32: how many differ."""
        (one, seconds), (two, _) = (run(self.there, folder, way, "float32") for way in (work, reference))
        _, cpu_seconds = run(self.here, folder, work, "float32")
        differ = float((one != two).sum()) if one.shape == two.shape else float(one.size)
        self._line(name, 0, differ, seconds, cpu_seconds)

    def _line(self, name: str, most: float, largest: float, seconds: float, cpu_seconds: float) -> None:
        kept = largest <= most
        if not kept:
            self.failed.append(name)
        numbers = f"{most:9.1e}{largest:10.1e}  {'ok' if kept else 'FAIL':4}"
        print(f"{name:46}{numbers}{1000 * seconds:9.1f}   {1000 * cpu_seconds:9.1f}", flush=True)


def run(where: mx.Device, folder: Path, work: Work, dtype: str) -> tuple[Any, float]:
    """What `work` gives on a device, and the seconds that it takes once everything is compiled and in memory."""
    with on(where):
        model = opened(where.type, str(folder), dtype)
        mx.eval(work(model))
        start = time.perf_counter()
        result = np.array(work(model))
        return result, time.perf_counter() - start


# Models


@cache
def opened(where: mx.DeviceType, folder: str, dtype: str) -> mlxgen.Model:
    """The model on the default device, which `where` names: each device lays the weights out in its own way."""
    return mlxgen.load(folder, dtype=dtype)


def write_model(folder: Path, layout: str, sizes: dict[str, int], dtype: mx.Dtype = mx.float32) -> Path:
    """A model folder with random weights in a published layout, and with the bundled model's tokenizer."""
    folder.mkdir(parents=True)
    entries = {"model_type": "gpt2", "vocab_size": 4096, "eos_token_id": None, "bos_token_id": 0, **sizes}
    rng = np.random.default_rng(0)
    weights = {}
    for name, array in tree_flatten(GPT2(GPT2Config.from_dict(entries)).parameters()):
        values = rng.standard_normal(array.shape)
        if array.ndim == 2:
            values *= 0.1 if name.endswith(("wte.weight", "wpe.weight")) else array.shape[1] ** -0.5
        else:
            values = 0.1 * values + (("ln_" in name) and name.endswith("weight"))
        stored = values.T if layout != "model." and name.endswith(PRODUCTS) else values
        prefix = "" if layout == "bare" else layout
        weights[prefix + name.removeprefix("model.")] = mx.array(np.ascontiguousarray(stored, np.float32)).astype(dtype)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(entries))
    with as_file(files("mlxgen.weights") / "fairy_tales") as bundled:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(bundled / name, folder / name)
    return folder


# What is computed: logits float32 [n, V], or tokens


def whole(ids: Sequence[int]) -> Work:
    """One pass over the context."""
    return lambda model: model.decoder(mx.array([ids]))[0]


def stepwise(ids: Sequence[int], *, compiled: bool = False, max_size: int | None = None) -> Work:
    """Half of the context in two chunks, the rest a token at a time; the logits of the tokens after the chunks."""

    def work(model: mlxgen.Model) -> mx.array:
        layers = make_cache(model.config.n_layer, max_size, KEEP if max_size else 0)
        step: Any = CompiledStep(model.decoder) if compiled else model.decoder.hidden
        half = len(ids) // 2
        for chunk in (ids[: half // 2], ids[half // 2 : half]):
            mx.eval(model.decoder.hidden(mx.array([chunk]), layers))
        hidden = []
        for token in ids[half:]:
            hidden.append(step(mx.array([[token]]), layers))
            mx.async_eval(hidden[-1])
        return model.decoder.head(mx.concatenate(hidden, axis=1))[0]

    return work


def second_half(ids: Sequence[int], max_size: int | None = None) -> Work:
    """The same logits from one pass: over the whole context, or through the mask of a rotating cache."""

    def work(model: mlxgen.Model) -> mx.array:
        layers = make_cache(model.config.n_layer, max_size, KEEP) if max_size else None
        return model.decoder(mx.array([ids]), layers)[0, len(ids) // 2 :]

    return work


def slid(ids: Sequence[int], pieces: int) -> Work:
    """The next logits after a context that is longer than the position table, given in so many pieces."""

    def work(model: mlxgen.Model) -> mx.array:
        session = Session(model, overflow="slide", keep=KEEP)
        size = -(-len(ids) // pieces)
        for start in range(0, len(ids), size):
            session.extend(ids[start : start + size])
            logits = session.prefill()
            mx.eval(logits)
        return logits

    return work


def answer(ids: Sequence[int], **options: Any) -> Work:
    return lambda model: mx.array(mlxgen.generate(model, ids, max_tokens=24, **options).tokens)


def searched(ids: Sequence[int]) -> Work:
    return lambda model: mx.array(mlxgen.beam_search(model, ids, max_tokens=16)[0].tokens)


def batched(prompts: Sequence[Sequence[int]], *, together: bool, **options: Any) -> Work:
    """The answers to several prompts, all at once or one after another."""

    def work(model: mlxgen.Model) -> mx.array:
        if together:
            rows = [row.tokens for row in mlxgen.batch(model, prompts, max_tokens=16, ordered=True, **options)]
        else:
            rows = [mlxgen.generate(model, prompt, max_tokens=16, **options).tokens for prompt in prompts]
        return mx.array([row + [0] * (16 - len(row)) for row in rows])

    return work


def drawn(model: mlxgen.Model) -> mx.array:
    """Tokens drawn with fixed keys, from logits that both devices have to the last bit."""
    logits = mx.array(np.random.default_rng(1).integers(-20, 20, (64, 4096)) / 4, mx.float32)
    return draw(apply_top_k(apply_temperature(logits, 1.0), 40), mx.random.key(5))


def kept(model: mlxgen.Model) -> mx.array:
    """Which tokens the bans and the cuts by probability keep, of logits that both devices have to the last bit."""
    rng = np.random.default_rng(3)
    logits = mx.array(rng.integers(-20, 20, (8, 4096)) / 4, mx.float32)
    recent = mx.array(rng.integers(0, 40, (8, 200)), mx.int32)
    banned = ban_words(ban_repeated_ngrams(logits, recent, 2), recent, *word_arrays([(41,), (2, 3), (4, 5, 6)]))
    cut = [apply_typical_p(logits, 0.9), apply_epsilon_cutoff(logits, 1e-3), apply_eta_cutoff(logits, 2e-3)]
    return mx.isfinite(mx.concatenate([ban_tokens(banned, [42, 43]), *cut])).astype(mx.float32)


def trained(ids: Sequence[int]) -> Work:
    """The loss, its gradient, and the loss after a step along it."""

    def loss(decoder: GPT2, batch: mx.array) -> mx.array:
        return nn.losses.cross_entropy(decoder(batch[:, :-1]), batch[:, 1:], reduction="mean")

    def work(model: mlxgen.Model) -> mx.array:
        batch, decoder = mx.array([ids, ids[::-1]]), model.decoder
        before = decoder.parameters()
        value, gradient = nn.value_and_grad(decoder, loss)(decoder, batch)
        moved = {name: array - 0.1 * dict(tree_flatten(gradient))[name] for name, array in tree_flatten(before)}
        decoder.load_weights(list(moved.items()))
        after = loss(decoder, batch)
        decoder.update(before)
        flat = [array.reshape(-1) for _, array in tree_flatten(gradient)]
        return mx.concatenate([value[None], after[None], *flat])

    return work


def check_all(table: Table, scratch: Path, quick: bool) -> None:
    layers, wide, n = (1, 2, 48) if quick else (6, 8, 256)  # layers, heads, positions
    base = {"n_layer": layers, "n_head": wide, "n_positions": n}
    ids = [int(token) for token in np.random.default_rng(2).integers(1, 4096, n)]
    short, longer = ids[: n // 2], (ids * 3)[: 2 * n + n // 3]
    plain: dict[int, Path] = {}
    for head_dim in (64, 80):
        sizes = {**base, "n_embd": wide * head_dim}
        heads = f"heads of {head_dim}"
        for layout in LAYOUTS:
            folder = write_model(scratch / f"{layout.strip('.')}-{head_dim}", layout, sizes)
            table.compare(f"whole pass, {layout} layout, {heads}", folder, whole(ids))
        plain[head_dim] = folder
        table.compare(f"plain step, {heads}", folder, stepwise(ids), second_half(ids))
        if not device.on_cpu() or shutil.which("g++"):
            table.compare(f"compiled step, {heads}", folder, stepwise(ids, compiled=True), second_half(ids))
        window = n // 4
        table.compare(f"rotating cache, {heads}", folder, stepwise(ids, max_size=window), second_half(ids, window))
        for dtype in ("float16", "bfloat16"):
            half = write_model(scratch / f"{dtype}-{head_dim}", "model.", sizes, getattr(mx, dtype))
            table.compare(f"whole pass, {dtype}, {heads}", half, whole(ids), dtype=dtype, limit=None)
            table.compare(
                f"plain step, {dtype}, {heads}", half, stepwise(ids), second_half(ids), dtype=dtype, limit=None
            )
    folder = plain[64]
    for bits in (4, 8):
        packed = convert(folder, scratch / f"{bits}bit", quantize=bits).folder
        table.compare(f"whole pass, {bits} bits", packed, whole(ids), limit=PACKED_LIMIT)
        table.compare(f"plain step, {bits} bits", packed, stepwise(ids), second_half(ids), limit=PACKED_LIMIT)
    table.compare("slide, in pieces and at once", folder, slid(longer, 7), slid(longer, 1))
    table.compare("training step", folder, trained(short))
    for name, rules in (("greedy", {"temperature": 0}), ("sampled", {"seed": 4})):
        pair = (answer(short[:8] * 3, lookahead=True, **rules), answer(short[:8] * 3, **rules))
        table.same(f"tokens with lookahead, {name}", folder, *pair)
        prompts = [short[:5], short[3:20], short[:1]]
        together, alone = (batched(prompts, together=way, **rules) for way in (True, False))
        table.same(f"tokens in a batch, {name}", folder, together, alone)
    table.compare("tokens found with 4 beams", folder, searched(short), limit=0)
    table.compare("tokens drawn with a key", folder, drawn, limit=0)
    table.compare("tokens that bans and cuts keep", folder, kept, limit=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller models")
    quick = parser.parse_args().quick
    table = Table(mx.default_device())
    print(f"{device.device_name()}, MLX {mx.__version__}" + (": the CPU against itself" if device.on_cpu() else ""))
    table.head()
    with tempfile.TemporaryDirectory() as scratch:
        check_all(table, Path(scratch), quick)
    print("\nEvery promise holds." if not table.failed else f"\nBroken: {'; '.join(table.failed)}")
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
