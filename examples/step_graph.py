"""What Python builds for one decode step: the primitives in its graph and the time to build it, compared with mlx-lm.

    python examples/step_graph.py

On Metal, every primitive that is not a view is a kernel to launch. The graph is that of MLX's default device; on the
CPU, LayerNorm and attention appear in it as the operations they consist of, on both sides. The model has twelve narrow
layers: the width changes neither number.
"""

import argparse
import io
import statistics
import time
from collections.abc import Callable

# mlxgen comes before MLX, to load a fast BLAS on Linux.
from mlxgen.network.cache import make_cache
from mlxgen.network.compiled_step import CompiledStep
from mlxgen.network.config import GPT2Config
from mlxgen.network.decoder import GPT2

# isort: split
import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.gpt2 import Model, ModelArgs

SHAPE = {"n_embd": 48, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 500, "layer_norm_epsilon": 1e-5}
RUNS = 200
Step = Callable[[], mx.array]


def sides() -> dict[str, Step]:
    """One more token through each decoder: every call builds the graph of a step's logits."""
    decoder = GPT2(GPT2Config.from_dict({"model_type": "gpt2", **SHAPE}))
    theirs = Model(ModelArgs.from_dict({"model_type": "gpt2", "n_ctx": 1024, **SHAPE}))
    token, prompt = mx.array([[3]]), mx.array([[1] * 20])
    plain_cache, compiled_cache, their_cache = make_cache(12), make_cache(12), make_prompt_cache(theirs)
    compiled = CompiledStep(decoder)
    mx.eval(decoder(prompt, plain_cache), decoder(prompt, compiled_cache), theirs(prompt, cache=their_cache))
    return {
        "mlxgen, compiled": lambda: decoder.head(compiled(token, compiled_cache)),
        "mlxgen, plain": lambda: decoder(token, plain_cache),
        "mlx-lm": lambda: theirs(token, cache=their_cache),
    }


def primitives(step: Step) -> int:
    """Operations in the graph of one step that has not been evaluated."""
    graph = io.StringIO()
    mx.export_to_dot(graph, step())
    return graph.getvalue().count("shape=rectangle")


def host_seconds(steps: dict[str, Step]) -> dict[str, float]:
    """Median time to build a step, the sides in turn; the device is idle meanwhile."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(RUNS):
        for name, step in steps.items():
            start = time.perf_counter()
            logits = step()
            seconds[name].append(time.perf_counter() - start)
            mx.eval(logits)
    return {name: statistics.median(values) for name, values in seconds.items()}


def measure() -> dict[str, tuple[int, float]]:
    """For each side the primitives of a step and the seconds to build it."""
    steps = sides()
    for step in steps.values():  # traced and compiled before anything is counted
        mx.eval(step())
    counts = {name: primitives(step) for name, step in steps.items()}
    seconds = host_seconds(steps)
    return {name: (counts[name], seconds[name]) for name in steps}


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    for side, (count, seconds) in measure().items():
        print(f"{side:18}{count:6} primitives {seconds * 1000:8.3f} ms to build")
