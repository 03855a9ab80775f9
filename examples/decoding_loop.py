"""The decoding loop by hand, from decoder, cache and samplers; prints the length of the cache after each step.

    python examples/decoding_loop.py [MODEL]

A selected token is always one step ahead of the cache. It joins the text at once, but its keys and values are computed
only when it is processed to find the next token. So after a prompt of n tokens and m selected tokens, the cache holds
n + m - 1 positions. `mlxgen.stream` is this loop with options and stop texts; it also starts the next pass before you
read the current token.
"""

import argparse

# mlxgen comes before MLX, to load a fast BLAS on Linux.
import mlxgen
from mlxgen.network.cache import make_cache
from mlxgen.sampling.samplers import apply_temperature, apply_top_k, draw

# isort: split
import mlx.core as mx

MAX_TOKENS = 8

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model", nargs="?", default="fairy-tales", help="a name or a folder (default: %(default)s)")
model = mlxgen.load(parser.parse_args().model)
cache = make_cache(model.config.n_layer)  # keys and values, one entry a layer


def report(event: str) -> None:
    print(f"{event:<34} text {len(tokens):>2} tokens, cache {cache[0].offset:>2} positions")


# 1. Context: the tokens so far.
tokens = model.tokenizer.encode("Once upon")
prompt = len(tokens)
report("prompt")

# 2. Prefill: the known prompt in one pass. ids [1, n] -> logits [1, n, V]; the last position predicts what comes next.
logits = model.decoder(mx.array([tokens]), cache)[:, -1]  # [1, V]
report("prefill")

keys = mx.random.split(mx.random.key(7), MAX_TOKENS)  # one random key a step, all from one seed
for key in keys:
    # 3. Sample: temperature, top-k, one draw. (Greedy would be mlxgen.sampling.samplers.greedy(logits).)
    selected = draw(apply_top_k(apply_temperature(logits.astype(mx.float32), 0.8), 40), key)  # [1]
    # 4. Append: the token belongs to the text. It has no cache entries yet.
    token = int(selected.item())
    tokens.append(token)
    report(f"selected {model.tokenizer.decode([token])!r}")
    # 6. ... until an end token, or the token limit: then the last token is never processed.
    if token in model.end_tokens or len(tokens) == prompt + MAX_TOKENS:
        break
    # 5. Process that one token: every layer adds its K and V and reads the cache. ids [1, 1] -> logits [1, 1, V]
    logits = model.decoder(selected[:, None], cache)[:, -1]
    report("processed it")

print(model.tokenizer.decode(tokens))

# Prints:
#   prompt                             text  2 tokens, cache  0 positions
#   prefill                            text  2 tokens, cache  2 positions
#   selected ' a'                      text  3 tokens, cache  2 positions
#   processed it                       text  3 tokens, cache  3 positions
#   selected ' time'                   text  4 tokens, cache  3 positions
#   processed it                       text  4 tokens, cache  4 positions
#   selected ' there'                  text  5 tokens, cache  4 positions
#   processed it                       text  5 tokens, cache  5 positions
#   selected ' lived'                  text  6 tokens, cache  5 positions
#   processed it                       text  6 tokens, cache  6 positions
#   selected ' a'                      text  7 tokens, cache  6 positions
#   processed it                       text  7 tokens, cache  7 positions
#   selected ' little'                 text  8 tokens, cache  7 positions
#   processed it                       text  8 tokens, cache  8 positions
#   selected ' boy'                    text  9 tokens, cache  8 positions
#   processed it                       text  9 tokens, cache  9 positions
#   selected ' who'                    text 10 tokens, cache  9 positions
#   Once upon a time there lived a little boy who
