"""Train the bundled fairy-tales model with torch: the recipe of train_fairy_tales.py, faster on a CPU.

    python examples/train_fairy_tales_torch.py --train TALES --valid TALES --out run --compile

The shipped weights were made by this script: on an x86 CPU, torch trains the same network faster than MLX. The network,
the loss, the optimizers and the schedule are those of train_fairy_tales.py, and so is the folder that it writes. It
saves checkpoints; after Ctrl-C, the same command resumes from the last one.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from fairy_tales_recipe import (
    CLIP_NORM,
    HEAD_DIM,
    SAVE_EVERY,
    VALIDATE_EVERY,
    Batches,
    Ids,
    Progress,
    bits_per_character,
    is_matrix,
    options,
    prepare,
    rate,
    write_folder,
)
from torch import Tensor, nn


class Block(nn.Module):
    """LayerNorm before attention and before the MLP, as in GPT-2. Names of Hugging Face, weights as [out, in]."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        qkv = self.attn.c_attn(self.ln_1(x)).view(B, L, 3, D // HEAD_DIM, HEAD_DIM)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [B, H, L, D/H]
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.attn.c_proj(a.transpose(1, 2).reshape(B, L, D)))
        h = F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh")
        return x + self.drop(self.mlp.c_proj(h))


class GPT2(nn.Module):
    def __init__(self, vocabulary: int, args: argparse.Namespace) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, args.width), nn.Embedding(args.context, args.width)
        self.drop = nn.Dropout(args.dropout)
        self.h = nn.ModuleList(Block(args.width, args.dropout) for _ in range(args.layers))
        self.ln_f = nn.LayerNorm(args.width)
        for name, p in self.named_parameters():  # GPT-2's initialisation
            if p.ndim == 2:
                depth = math.sqrt(2 * args.layers) if name.endswith("c_proj.weight") else 1.0
                nn.init.normal_(p, std=0.02 / depth)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def losses(self, ids: Tensor) -> Tensor:
        """Teacher forcing: every position predicts the next true token. ids [B, L+1] -> nats [B * L]."""
        x = self.drop(self.wte(ids[:, :-1]) + self.wpe.weight[: ids.shape[1] - 1])
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)  # [B, L, V], the head is tied
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")

    def loss(self, ids: Tensor) -> Tensor:
        return self.losses(ids).mean()


class Muon(torch.optim.Optimizer):
    """Momentum, then the nearest orthogonal matrix by five Newton-Schulz steps (Jordan et al., 2024).

    torch.optim.Muon computes these products in bfloat16, which most CPUs emulate; this one computes in float32.
    """

    def __init__(self, params: list[nn.Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": 0.95})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                buffer = state.setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonal(p.grad.lerp(buffer, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def orthogonal(g: Tensor) -> Tensor:
    x = g if g.shape[0] <= g.shape[1] else g.T
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (2.0315 * a @ a - 4.7750 * a) @ x
    return x if g.shape[0] <= g.shape[1] else x.T


def save(checkpoint: Path, model: GPT2, optimizers: list[torch.optim.Optimizer], step: int) -> None:
    state = {"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "step": step}
    torch.save(state, checkpoint.with_suffix(".tmp"))
    checkpoint.with_suffix(".tmp").replace(checkpoint)


def restore(checkpoint: Path, model: GPT2, optimizers: list[torch.optim.Optimizer]) -> int:
    """The step from which the saved run resumes; 0 if there is none."""
    if not checkpoint.exists():
        return 0
    saved = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(saved["model"])
    for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    print(f"resuming at step {saved['step']}")
    return int(saved["step"])


def main(argv: list[str] | None = None) -> None:
    parser = options(str(__doc__).splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="use torch.compile, which needs a C++ compiler")
    args = parser.parse_args(argv)
    data = prepare(args)
    torch.manual_seed(args.seed)
    model = GPT2(data.tokenizer.get_vocab_size(), args)
    named = list(model.named_parameters())
    matrices = [p for name, p in named if is_matrix(name, p.ndim)]
    others = [p for name, p in named if not is_matrix(name, p.ndim)]
    optimizers = [
        Muon(matrices, args.muon_lr, args.weight_decay),
        torch.optim.AdamW(others, lr=args.adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    loss_of = torch.compile(model.loss) if args.compile else model.loss

    def validate() -> float:
        def losses(ids: Ids) -> npt.NDArray[np.float32]:
            with torch.no_grad():
                return model.losses(torch.from_numpy(ids)).numpy()

        model.eval()  # dropout off
        bits = bits_per_character(data, args.context, losses)
        model.train()
        return bits

    checkpoint = args.out / "checkpoint.pt"
    step = restore(checkpoint, model, optimizers)
    size = sum(p.numel() for p in model.parameters())
    batches, progress = Batches(data, args), Progress(data, args, step, size)
    end = min(data.total, args.stop_at or data.total)
    while step < end and not progress.interrupted.is_set():
        torch.manual_seed(args.seed + step)  # dropout's draws depend on the step alone, so a run can resume
        for optimizer, base in zip(optimizers, (args.muon_lr, args.adam_lr), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = base * rate(step, data.total)
        loss = loss_of(torch.from_numpy(batches(step)))
        loss.backward()
        nn.utils.clip_grad_norm_(others, CLIP_NORM)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step += 1
        progress(step, loss.item())
        if step % SAVE_EVERY == 0:
            save(checkpoint, model, optimizers, step)
        if step % VALIDATE_EVERY == 0 and step < end:
            print(f"step {step}  validation {validate():.4f} bits per character", flush=True)
    save(checkpoint, model, optimizers, step)
    print(f"step {step}  validation {validate():.4f} bits per character")
    write_folder(data, args, {n: p.detach().numpy() for n, p in named})
    print(f"the model is in {args.out}")


if __name__ == "__main__":
    main()
