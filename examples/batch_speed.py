"""How much faster 16 answers at once are than one after another: GPT-2's 124M shape, random float32 weights.

Both sides in one run, in turns, so that whatever else the machine does hits both; medians of what was measured.

    python examples/batch_speed.py [--rounds 3] [--tokens 32]
"""

import argparse
import statistics
import time

import mlxgen  # first: it loads the BLAS

import mlx.core as mx  # isort: skip
from mlx.utils import tree_map_with_path

from mlxgen import device
from mlxgen.generation.batching import batch
from mlxgen.network.config import GPT2Config
from mlxgen.network.decoder import GPT2

ROWS = 16
PROMPT = 32  # tokens


class NoText:
    """Stands in for a tokenizer: the prompts are token ids, and nobody reads the text."""

    def stream(self, context: object) -> "NoText":
        return self

    def add(self, token: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


def random_model() -> mlxgen.Model:
    config = GPT2Config.from_dict(
        {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
    )
    decoder = GPT2(config)
    mx.random.seed(0)
    decoder.update(
        tree_map_with_path(
            lambda name, a: a if "ln_" in name else 0.02 * mx.random.normal(a.shape), decoder.parameters()
        )
    )
    mx.eval(decoder.parameters())
    device.lay_out_weights(decoder)  # as mlxgen.load does
    return mlxgen.Model("random", config, decoder, NoText(), frozenset())  # type: ignore[arg-type]


def tokens_per_second(model: mlxgen.Model, rows: int, n: int) -> float:
    """Of a whole batch: prompts of PROMPT tokens, n new tokens each."""
    prompts = mx.random.randint(0, model.config.vocab_size, (rows, PROMPT)).tolist()
    start = time.perf_counter()
    made = sum(len(answer.tokens) for answer in batch(model, prompts, batch_size=rows, max_tokens=n, seed=0))
    return made / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    wanted = parser.parse_args()
    model = random_model()
    tokens_per_second(model, ROWS, 2)  # warm up
    one, many, ratios = [], [], []
    for _ in range(wanted.rounds):
        one.append(tokens_per_second(model, 1, wanted.tokens))
        many.append(tokens_per_second(model, ROWS, wanted.tokens))
        ratios.append(many[-1] / one[-1])
        print(f"batch 1: {one[-1]:6.1f} tokens/s   batch {ROWS}: {many[-1]:6.1f} tokens/s   {ratios[-1]:.1f} times")
    middle = [statistics.median(values) for values in (one, many, ratios)]
    print("medians: {:.1f} and {:.1f} tokens/s, {:.1f} times".format(*middle))


if __name__ == "__main__":
    main()
