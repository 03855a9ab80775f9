"""GPT-2's tensors under llama.cpp's names, and under the decoder's. Both have weights as [out, in]."""

from __future__ import annotations

from collections.abc import Iterator

LAYER = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
OUTSIDE = {
    "token_embd.weight": "model.wte.weight",
    "position_embd.weight": "model.wpe.weight",
    "output_norm.weight": "model.ln_f.weight",
    "output_norm.bias": "model.ln_f.bias",
}
HEAD = {"output.weight": "lm_head.weight"}  # only where it is not tied to the embedding


def decoder_names(n_layer: int) -> Iterator[tuple[str, str]]:
    """llama.cpp's name of each tensor and the decoder's, in order, without the head."""
    yield from OUTSIDE.items()
    for layer in range(n_layer):
        for theirs, ours in LAYER.items():
            for kind in ("weight", "bias"):
                yield f"blk.{layer}.{theirs}.{kind}", f"model.h.{layer}.{ours}.{kind}"
