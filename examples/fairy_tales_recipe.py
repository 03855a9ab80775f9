"""The recipe of the fairy-tales model without the network: what the training scripts in MLX and in torch share.

Options, corpus and tokenizer, the order of the batches, the learning-rate schedule, how validation is scored, and the
model folder that is written. Everything here is plain NumPy.
"""

import argparse
import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

END = "<|endoftext|>"
VOCABULARY, HEAD_DIM = 4096, 64
LOG_EVERY, SAVE_EVERY, VALIDATE_EVERY = 25, 100, 500  # steps
CLIP_NORM = 1.0

Ids = npt.NDArray[np.int64]


def options(description: str) -> argparse.ArgumentParser:
    """The options of both scripts; the defaults are the recipe of the bundled model."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--train", type=Path, required=True, help=f"a file of tales, separated by {END}")
    parser.add_argument("--valid", type=Path, required=True, help="a file of tales to measure on, never trained on")
    parser.add_argument(
        "--out", type=Path, default=Path("fairy-tales-run"), help="folder of the model and the checkpoint"
    )
    parser.add_argument("--epochs", type=int, default=5, help="passes over the tales")
    parser.add_argument("--steps", type=int, help="length of the training, instead of --epochs")
    parser.add_argument("--stop-at", type=int, help="stop after this step; the same command resumes from there")
    parser.add_argument("--batch", type=int, default=8, help="windows per step")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256, help=f"a multiple of {HEAD_DIM}, the width of a head")
    parser.add_argument("--context", type=int, default=512, help="tokens per window")
    parser.add_argument("--dropout", type=float, default=0.05)
    parser.add_argument("--muon-lr", type=float, default=0.02, help="for the blocks' matrices")
    parser.add_argument("--adam-lr", type=float, default=2e-3, help="for all other parameters")
    parser.add_argument("--weight-decay", type=float, default=0.05, help="of the blocks' matrices")
    parser.add_argument("--seed", type=int, default=1)
    return parser


@dataclass(frozen=True, slots=True)
class Data:
    """The corpus as ids, and how long the training is."""

    tokenizer: Tokenizer
    train: Ids  # [tokens]
    valid: Ids  # [tokens]
    valid_characters: int
    steps_per_epoch: int
    total: int  # steps


def prepare(args: argparse.Namespace) -> Data:
    """Read the tales; train the tokenizer, or take the one that a stopped run left in --out."""
    if args.width % HEAD_DIM:
        sys.exit(f"Error: --width is {args.width}, which is not a multiple of {HEAD_DIM}")
    tales, held_out = read_tales(args.train), read_tales(args.valid)
    vocabulary = args.out / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(vocabulary)) if vocabulary.exists() else train_tokenizer(tales)
    train = to_ids(tokenizer, tales)
    steps_per_epoch = (len(train) - 2 * args.context) // args.context // args.batch
    if steps_per_epoch < 1:
        sys.exit(
            f"Error: {args.train} holds {len(train)} tokens, too few for one batch of {args.batch} x "
            f"{args.context}; give more text, or a smaller --batch or --context"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(vocabulary))
    total = args.steps or args.epochs * steps_per_epoch
    return Data(tokenizer, train, to_ids(tokenizer, held_out), sum(map(len, held_out)), steps_per_epoch, total)


def read_tales(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        sys.exit(f"Error: cannot read {path}: {error.strerror}")
    return [tale.strip() for tale in text.split(END) if tale.strip()]


def train_tokenizer(tales: list[str]) -> Tokenizer:
    """A byte-level BPE like GPT-2's, with at most 4,096 tokens; the end token is number 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(tales, trainer)
    return tokenizer


def to_ids(tokenizer: Tokenizer, tales: list[str]) -> Ids:
    """All tales in one row of ids, with an end token before each."""
    end = tokenizer.token_to_id(END)
    return np.concatenate([np.array([end, *e.ids]) for e in tokenizer.encode_batch(tales)])


class Batches:
    """The windows that a step trains on. They depend only on the seed and the step, so a run can resume."""

    def __init__(self, data: Data, args: argparse.Namespace) -> None:
        self.data, self.args = data, args
        self.epoch, self.order = -1, np.empty(0, np.int64)

    def __call__(self, step: int) -> Ids:
        """ids [batch, context + 1]: each window, and one token to the right of it for the last prediction."""
        epoch, at = divmod(step, self.data.steps_per_epoch)
        ids, context, batch = self.data.train, self.args.context, self.args.batch
        if epoch != self.epoch:  # cut the row into windows at a random offset, and shuffle them
            rng = np.random.default_rng([self.args.seed, epoch])
            starts = np.arange(rng.integers(context), len(ids) - context - 1, context)
            rng.shuffle(starts)
            self.epoch, self.order = epoch, starts
        return np.stack([ids[s : s + context + 1] for s in self.order[at * batch : (at + 1) * batch]])


def rate(step: int, total: int) -> float:
    """The factor on the learning rates: up over 100 steps, constant, then down to zero over the last 40 %."""
    return min(1.0, (step + 1) / 100, (total - step) / (0.4 * total))


def is_matrix(name: str, ndim: int) -> bool:
    """The blocks' weight matrices, which Muon trains; embeddings, biases and norms are AdamW's."""
    return ndim == 2 and "h." in name


def bits_per_character(data: Data, context: int, losses: Callable[[Ids], npt.NDArray[np.float32]]) -> float:
    """Score the validation tales in windows that overlap by half; each token after the first counts once.

    losses: ids [1, L + 1] -> nats of each of the L predicted tokens, [L]. After the first window, every token is
    predicted from at least half a window of context.
    """
    nats, half = 0.0, context // 2
    for start in range(0, len(data.valid) - 1, half):
        window = data.valid[start : start + context + 1][None]
        new = window.shape[1] - 1 - (half if start else 0)
        if new <= 0:
            break
        nats += float(losses(window)[-new:].sum())
    return nats / math.log(2) / data.valid_characters


class Progress:
    """Prints a line every 25 steps, with the mean loss since the last line. Ctrl-C stops after the current step."""

    def __init__(self, data: Data, args: argparse.Namespace, step: int, parameters: int) -> None:
        self.total, self.tokens_per_step = data.total, args.batch * args.context
        self.losses: list[float] = []
        self.first, self.began = step, time.perf_counter()
        self.interrupted = threading.Event()
        shape = f"{self.total} steps of {args.batch} x {args.context}"
        print(f"{parameters:,} parameters, {len(data.train):,} tokens, {shape}", flush=True)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, lambda *_: self.interrupted.set())

    def __call__(self, step: int, loss: float) -> None:
        self.losses.append(loss)
        if step != 1 and step % LOG_EVERY and step != self.total:
            return
        a_step = (time.perf_counter() - self.began) / (step - self.first)
        left = time.strftime("%H:%M:%S", time.gmtime((self.total - step) * a_step))
        mean = sum(self.losses) / len(self.losses)
        speed = self.tokens_per_step / a_step
        print(f"step {step}/{self.total}  loss {mean:.3f}  {speed:,.0f} tokens/s  {left} left", flush=True)
        self.losses.clear()


def config(data: Data, args: argparse.Namespace) -> dict[str, Any]:
    """The entries of config.json, as transformers writes them."""
    end = data.tokenizer.token_to_id(END)
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "vocab_size": data.tokenizer.get_vocab_size(),
        "n_positions": args.context,
        "n_ctx": args.context,
        "n_embd": args.width,
        "n_layer": args.layers,
        "n_head": args.width // HEAD_DIM,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": end,
        "eos_token_id": end,
        "torch_dtype": "float16",
    }


def write_folder(data: Data, args: argparse.Namespace, tensors: dict[str, npt.NDArray[np.float32]]) -> None:
    """Write the model as transformers does: its names, Conv1D matrices as [in, out], float16.

    tensors: GPT-2's names without prefix (`h.0.attn.c_attn.weight`), matrices [out, in].
    """
    stored = {
        f"transformer.{name}": np.ascontiguousarray(t.T if is_matrix(name, t.ndim) else t, np.float16)
        for name, t in tensors.items()
    }
    out = args.out
    save_file(stored, out / "model.tmp", metadata={"format": "pt"})
    (out / "model.tmp").replace(out / "model.safetensors")
    special = {"bos_token": END, "eos_token": END, "unk_token": END}
    tokenizer_config = {
        "tokenizer_class": "GPT2TokenizerFast",
        "add_prefix_space": False,
        **special,
        "model_max_length": args.context,
    }
    (out / "config.json").write_text(json.dumps(config(data, args), indent=2) + "\n")
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n")
    data.tokenizer.save(str(out / "tokenizer.json"))
