"""What Python builds for one decode step: the primitives in its graph, and the time to build it and to send it off.

    python examples/step_graph.py

Two parts: the decoder, compared with mlx-lm's, and the choice of a token, for one text and for batches of 8 and 32. On
Metal, every primitive that is not a view is at least one kernel to launch. The graph is that of MLX's default device.
On the CPU, LayerNorm and attention appear in it as the operations they consist of, on both sides; mlxgen's compiled
operations, which Metal does not have, are not used. The decoder has twelve narrow layers: the width changes none of the
numbers. The vocabulary of the choice is GPT-2's.
"""

import argparse
import io
import statistics
import time
from collections.abc import Callable
from unittest import mock

# mlxgen comes before MLX, to load a fast BLAS on Linux.
from mlxgen import cpu_operations
from mlxgen.network.cache import make_cache
from mlxgen.network.compiled_step import CompiledStep
from mlxgen.network.config import GPT2Config
from mlxgen.network.decoder import GPT2
from mlxgen.sampling.chooser import Chooser
from mlxgen.sampling.samplers import Sampling

# isort: split
import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.gpt2 import Model, ModelArgs

SHAPE = {"n_embd": 48, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 500, "layer_norm_epsilon": 1e-5}
RUNS = 200
VOCAB_SIZE = 50_257
RULES = {"greedy": Sampling(temperature=0), "top-k + top-p": Sampling(top_k=40, top_p=0.95)}
ROWS = (1, 8, 32)
Step = Callable[[], list[mx.array]]


def choices() -> dict[str, Step]:
    """One more token for each row of logits: every call builds the graph of a choice, as the loop and batches do."""
    return {
        f"choice, {name}, {rows} row{'s' * (rows > 1)}": choice(sampling, rows)
        for name, sampling in RULES.items()
        for rows in ROWS
    }


def choice(sampling: Sampling, rows: int) -> Step:
    choose = Chooser(sampling, 0, [], VOCAB_SIZE)
    for seed in range(1, rows):
        choose.join(Chooser(sampling, seed, [], VOCAB_SIZE))
    logits = mx.random.normal((rows, VOCAB_SIZE), key=mx.random.key(0))
    mx.eval(logits, choose.state)
    return lambda: [*choose(logits).arrays, *choose.state]


def decoders() -> dict[str, Step]:
    """One more token through each decoder: every call builds the graph of a step's logits."""
    decoder = GPT2(GPT2Config.from_dict({"model_type": "gpt2", **SHAPE}))
    theirs = Model(ModelArgs.from_dict({"model_type": "gpt2", "n_ctx": 1024, **SHAPE}))
    token, prompt = mx.array([[3]]), mx.array([[1] * 20])
    plain_cache, compiled_cache, their_cache = make_cache(12), make_cache(12), make_prompt_cache(theirs)
    compiled = CompiledStep(decoder)
    mx.eval(decoder(prompt, plain_cache), decoder(prompt, compiled_cache), theirs(prompt, cache=their_cache))
    return {
        "mlxgen, compiled": lambda: [decoder.head(compiled(token, compiled_cache))],
        "mlxgen, plain": lambda: [decoder(token, plain_cache)],
        "mlx-lm": lambda: [theirs(token, cache=their_cache)],
    }


def primitives(step: Step) -> int:
    """Operations in the graph of one step that has not been evaluated."""
    graph = io.StringIO()
    mx.export_to_dot(graph, *step())
    return graph.getvalue().count("shape=rectangle")


def host_seconds(steps: dict[str, Step], runs: int) -> dict[str, tuple[float, float]]:
    """Median times to build each step and to send it off, the sides in turn; the device is idle meanwhile."""
    built: dict[str, list[float]] = {name: [] for name in steps}
    sent: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(runs):
        for name, step in steps.items():
            start = time.perf_counter()
            arrays = step()
            built[name].append(time.perf_counter() - start)
            start = time.perf_counter()
            mx.async_eval(*arrays)
            sent[name].append(time.perf_counter() - start)
            mx.eval(*arrays)
    return {name: (statistics.median(built[name]), statistics.median(sent[name])) for name in steps}


def measure(steps: dict[str, Step], runs: int = RUNS) -> dict[str, tuple[int, float, float]]:
    """For each step its primitives, and the seconds to build it and to send it off."""
    with mock.patch.object(cpu_operations, "available_for", return_value=False):
        for step in steps.values():  # traced and compiled before anything is counted
            mx.eval(*step())
        counts = {name: primitives(step) for name, step in steps.items()}
        seconds = host_seconds(steps, runs)
    return {name: (counts[name], *seconds[name]) for name in steps}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS, help="how often each step is built")
    args = parser.parse_args()
    measured = measure(decoders(), args.runs) | measure(choices(), max(args.runs // 10, 1))
    for name, (count, build, send) in measured.items():
        print(f"{name:32}{count:6} primitives {build * 1000:8.3f} ms to build {send * 1000:8.3f} ms to send")
