"""How much faster a batch of 16 answers is than one answer after another: GPT-2's 124M shape, random float32 weights.

    python examples/batch_speed.py [--rounds 3] [--tokens 64]

Both sides are measured in one run and take turns, so that other work on the machine slows both. The medians count.
"""

import argparse
import statistics
import time
from importlib.resources import files
from pathlib import Path

# mlxgen comes before MLX, to load a fast BLAS on Linux.
import mlxgen
from mlxgen import device
from mlxgen.network.config import GPT2Config
from mlxgen.network.decoder import GPT2
from mlxgen.text.tokenizer import load_tokenizer

# isort: split
import mlx.core as mx
from mlx.utils import tree_map_with_path

ROWS = 16
PROMPT = 32  # tokens


def random_model() -> mlxgen.Model:
    """Its tokenizer is the bundled model's, which is smaller: the other ids have no text."""
    config = GPT2Config.from_dict({"model_type": "gpt2"})  # the defaults are the 124M shape
    decoder = GPT2(config)
    mx.random.seed(0)
    decoder.update(
        tree_map_with_path(
            lambda name, a: a if "ln_" in name else 0.02 * mx.random.normal(a.shape), decoder.parameters()
        )
    )
    mx.eval(decoder.parameters())
    device.lay_out_weights(decoder)  # as mlxgen.load does
    tokenizer = load_tokenizer(Path(str(files("mlxgen.weights"))) / "fairy_tales", n_embeddings=config.vocab_size)
    return mlxgen.Model("random", config, decoder, tokenizer, frozenset())


def tokens_per_second(model: mlxgen.Model, rows: int, n: int) -> float:
    """The speed of a whole batch: prompts of PROMPT tokens, n new tokens each."""
    prompts = mx.random.randint(0, model.config.vocab_size, (rows, PROMPT)).tolist()
    start = time.perf_counter()
    made = sum(len(answer.tokens) for answer in mlxgen.batch(model, prompts, batch_size=rows, max_tokens=n, seed=0))
    return made / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each side (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each answer (default: %(default)s)")
    options = parser.parse_args()
    model = random_model()
    tokens_per_second(model, ROWS, 2)  # warm up
    one, many, ratios = [], [], []
    for _ in range(options.rounds):
        one.append(tokens_per_second(model, 1, options.tokens))
        many.append(tokens_per_second(model, ROWS, options.tokens))
        ratios.append(many[-1] / one[-1])
        print(f"batch 1: {one[-1]:6.1f} tokens/s   batch {ROWS}: {many[-1]:6.1f} tokens/s   {ratios[-1]:.1f} times")
    medians = [statistics.median(values) for values in (one, many, ratios)]
    print("medians: {:.1f} and {:.1f} tokens/s, {:.1f} times".format(*medians))


if __name__ == "__main__":
    main()
