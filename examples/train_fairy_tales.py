"""Train the fairy-tales model in MLX, from two text files to a folder that mlxgen.load opens.

    python examples/train_fairy_tales.py --train TALES --valid TALES --out run
    mlxgen generate -m run "Once upon a time"

Training and generation run the same decoder in different ways.

- Training knows the whole text. Every position of a window is given the true tokens before it, never the model's own
  guesses (teacher forcing), and has to predict the true next token. The causal mask keeps a position from reading what
  comes after it, so one pass makes the 512 predictions of a window in parallel. Each has a loss: -ln of the probability
  given to the token that really follows. The mean of the losses is the cross-entropy; its gradient changes the weights.
  Nothing is sampled and there is no cache. Dropout switches off some values at random, so that the model does not rely
  on any one of them.
- Generation knows the text so far. Each pass processes one new token, reads the rest from the cache of keys and values,
  samples a token from the logits of the last position, and feeds that token back in. The weights do not change and
  dropout is off.

Muon trains the matrices of the blocks, AdamW everything else. Every random choice is seeded. After Ctrl-C, the same
command resumes from the checkpoint as if it had never stopped.
"""

from pathlib import Path

# mlxgen comes before MLX, to load a fast BLAS on Linux.
from mlxgen.network.config import GPT2Config
from mlxgen.network.decoder import GPT2

# isort: split
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
import numpy.typing as npt
from fairy_tales_recipe import (
    CLIP_NORM,
    SAVE_EVERY,
    VALIDATE_EVERY,
    Batches,
    Ids,
    Progress,
    bits_per_character,
    config,
    is_matrix,
    options,
    prepare,
    rate,
    write_folder,
)
from mlx.utils import tree_flatten, tree_map, tree_unflatten


def initialise(decoder: GPT2, key: mx.array) -> None:
    """GPT-2's initialisation: normal with standard deviation 0.02, less where a block adds to the residual stream."""
    start = []
    for name, p in tree_flatten(decoder.parameters()):
        if p.ndim == 2:
            key, draw = mx.random.split(key)
            depth = (2 * decoder.config.n_layer) ** 0.5 if name.endswith("c_proj.weight") else 1.0
            start.append((name, mx.random.normal(p.shape, scale=0.02 / depth, key=draw)))
        elif name.endswith("bias"):
            start.append((name, mx.zeros_like(p)))
    decoder.load_weights(start, strict=False)


def training_logits(decoder: GPT2, ids: mx.array, dropout: float, key: mx.array) -> mx.array:
    """The decoder's layers with dropout between them: ids [B, L] -> logits [B, L, V]."""

    def drop(x: mx.array) -> mx.array:
        kept = mx.random.bernoulli(1 - dropout, x.shape, key=next(keys))
        return mx.where(kept, x / (1 - dropout), 0.0)

    keys = iter(mx.random.split(key, 1 + 2 * decoder.config.n_layer))
    B, L = ids.shape
    x = drop(decoder.model.wte(ids) + decoder.model.wpe(mx.arange(L))).reshape(B * L, -1)
    for block in decoder.layers:
        x = x + drop(block.attn(block.ln_1(x), B, "causal", None))
        x = x + drop(block.mlp(block.ln_2(x)))
    return decoder.head(decoder.model.ln_f(x)).reshape(B, L, -1)


class Muon(optim.Muon):
    """MLX's Muon with decoupled weight decay, as in AdamW: it shrinks the weights, and not the gradient."""

    def __init__(self, learning_rate: float, decay: float) -> None:
        super().__init__(learning_rate, momentum=0.95, weight_decay=0.0)
        self.decay = decay

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, mx.array]) -> mx.array:
        return super().apply_single(gradient, parameter * (1 - self.learning_rate * self.decay), state)


def clip(gradients: dict[str, mx.array]) -> dict[str, mx.array]:
    """Clip the gradients that AdamW uses to norm 1; Muon uses only the direction of a gradient."""
    flat = tree_flatten(gradients)
    others, _ = optim.clip_grad_norm({n: g for n, g in flat if not is_matrix(n, g.ndim)}, CLIP_NORM)
    return tree_unflatten([(n, others.get(n, g)) for n, g in flat])


def save(checkpoint: Path, decoder: GPT2, optimizer: optim.MultiOptimizer, step: int) -> None:
    state = {"decoder": decoder.parameters(), "optimizer": optimizer.state, "step": mx.array(step)}
    beside = checkpoint.with_name("checkpoint.tmp.npz")
    mx.savez(str(beside), **dict(tree_flatten(state)))
    beside.replace(checkpoint)


def restore(checkpoint: Path, decoder: GPT2, optimizer: optim.MultiOptimizer) -> int:
    """The step from which the saved run resumes; 0 if there is none."""
    if not checkpoint.exists():
        return 0
    state = tree_unflatten(list(mx.load(str(checkpoint)).items()))
    decoder.update(state["decoder"])
    optimizer.state = state["optimizer"]
    step = int(state["step"].item())
    print(f"resuming at step {step}")
    return step


def main(argv: list[str] | None = None) -> None:
    args = options(str(__doc__).splitlines()[0]).parse_args(argv)
    data = prepare(args)
    decoder = GPT2(GPT2Config.from_dict(config(data, args)))
    initialise(decoder, mx.random.key(args.seed))
    optimizer = optim.MultiOptimizer(
        [
            Muon(args.muon_lr, args.weight_decay),
            optim.AdamW(args.adam_lr, betas=[0.9, 0.95], weight_decay=0.0, bias_correction=True),
        ],
        [lambda name, p: is_matrix(name, p.ndim)],
    )
    optimizer.init(decoder.trainable_parameters())

    def loss(ids: mx.array, key: mx.array) -> mx.array:
        """Each position's target is the token one to the right. ids [B, L + 1] -> mean nats per token."""
        logits = training_logits(decoder, ids[:, :-1], args.dropout, key)
        return nn.losses.cross_entropy(logits, ids[:, 1:], reduction="mean")

    gradient_of = nn.value_and_grad(decoder, loss)

    def update(ids: mx.array, key: mx.array) -> mx.array:
        nats, gradients = gradient_of(ids, key)
        optimizer.update(decoder, clip(gradients))
        return nats

    def validate() -> float:
        def losses(ids: Ids) -> npt.NDArray[np.float32]:
            logits = decoder(mx.array(ids[:, :-1]))  # the decoder as it is in use: no dropout
            return np.array(nn.losses.cross_entropy(logits, mx.array(ids[:, 1:]))[0])

        return bits_per_character(data, args.context, losses)

    checkpoint = args.out / "checkpoint.npz"
    step = restore(checkpoint, decoder, optimizer)
    size = sum(p.size for _, p in tree_flatten(decoder.parameters()))
    batches, progress = Batches(data, args), Progress(data, args, step, size)
    end = min(data.total, args.stop_at or data.total)
    while step < end and not progress.interrupted.is_set():
        for part, base in zip(optimizer.optimizers, (args.muon_lr, args.adam_lr), strict=True):
            part.learning_rate = base * rate(step, data.total)
        nats = update(mx.array(batches(step)), mx.random.key((args.seed << 32) + step))  # a graph so far
        mx.eval(nats, decoder.state, optimizer.state)  # forward, backward and update happen here
        step += 1
        progress(step, nats.item())
        if step % SAVE_EVERY == 0:
            save(checkpoint, decoder, optimizer, step)
        if step % VALIDATE_EVERY == 0 and step < end:
            print(f"step {step}  validation {validate():.4f} bits per character", flush=True)
    save(checkpoint, decoder, optimizer, step)
    print(f"step {step}  validation {validate():.4f} bits per character")
    trunk = tree_map(np.array, decoder.parameters()["model"])
    write_folder(data, args, dict(tree_flatten(trunk)))
    print(f"the model is in {args.out}")


if __name__ == "__main__":
    main()
