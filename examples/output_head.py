"""The output head by hand: from one hidden vector to one token, in NumPy and with mlxgen's samplers.

    python examples/output_head.py

The last layer leaves a vector h for the newest position. The head multiplies h by a matrix with one column for each
vocabulary entry; the products are the logits. Softmax turns them into probabilities, and a rule picks a token. Three
tokens and two dimensions are enough to follow every number.
"""

import argparse

# mlxgen comes before MLX, to load a fast BLAS on Linux.
from mlxgen.sampling.samplers import apply_temperature, apply_top_k, apply_top_p, draw, greedy

# isort: split
import mlx.core as mx
import numpy as np

argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()

VOCABULARY = ["king", "frog", "spoon"]
h = np.array([1.0, 2.0])  # hidden vector [D]
W = np.array([[1.0, 0.0, -1.0], [0.0, 1.0, 0.0]])  # head [D, V]


def show(name: str, numbers: object) -> None:
    print(f"{name:<32}", np.round(np.array(numbers, np.float64), 4) + 0.0)  # + 0.0: no minus zero


# In NumPy: logits [V], softmax, and the two ways to choose.
logits = h @ W
exponentials = np.exp(logits - logits.max())  # the shift changes no probability and keeps exp from overflowing
probabilities = exponentials / exponentials.sum()
show("logits", logits)
show("probabilities", probabilities)
index = int(logits.argmax())
print(f"{'greedy':<32}", index, VOCABULARY[index])
show("loss if 'king' is what follows", -np.log(probabilities[0]))

# The same with the samplers that mlxgen.generate uses. They take logits [B, V] and return token ids [B].
row = mx.array(logits, mx.float32)[None]
show("mlxgen probabilities", mx.softmax(row, axis=-1)[0])
token = int(greedy(row).item())
print(f"{'mlxgen greedy':<32}", token, VOCABULARY[token])
show("temperature 0.5 sharpens", mx.softmax(apply_temperature(row, 0.5), axis=-1)[0])
show("temperature 2 flattens", mx.softmax(apply_temperature(row, 2.0), axis=-1)[0])
show("top-k 2 cuts 'spoon'", mx.softmax(apply_top_k(row, 2), axis=-1)[0])
show("top-p 0.7 needs 'frog' alone", mx.softmax(apply_top_p(row, 0.7), axis=-1)[0])
drawn = draw(mx.repeat(row, 10_000, axis=0), mx.random.key(1))  # 10,000 rows, one draw each
show("shares in 10,000 draws", np.bincount(np.array(drawn), minlength=3) / 10_000)

# Prints:
#   logits                           [ 1.  2. -1.]
#   probabilities                    [0.2595 0.7054 0.0351]
#   greedy                           1 frog
#   loss if 'king' is what follows   1.349
#   mlxgen probabilities             [0.2595 0.7054 0.0351]
#   mlxgen greedy                    1 frog
#   temperature 0.5 sharpens         [0.1189 0.8789 0.0022]
#   temperature 2 flattens           [0.3315 0.5465 0.122 ]
#   top-k 2 cuts 'spoon'             [0.2689 0.7311 0.    ]
#   top-p 0.7 needs 'frog' alone     [0. 1. 0.]
#   shares in 10,000 draws           [0.2594 0.7058 0.0348]
