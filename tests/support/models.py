"""Tiny GPT-2s with random weights, in every form that a test needs: in memory, as a folder, as transformers' own."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers.pre_tokenizers import ByteLevel

from mlxgen.model import Model
from mlxgen.network.config import GPT2Config
from mlxgen.network.decoder import GPT2
from mlxgen.text.tokenizer import Tokenizer, load_tokenizer

Array = Any  # a NumPy array
Weights = dict[str, Array]

END = "<|endoftext|>"
CHAT_MARKS = ("<|im_start|>", "<|im_end|>")
BYTES = sorted(ByteLevel.alphabet())  # the 256 bytes, by the characters that stand for them
LAYOUTS = ("bare", "transformer.", "model.")
PRODUCTS = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
SIZES = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}


@dataclass(frozen=True)
class TinyGPT2:
    """config.json's entries; weights under the decoder's names, float32, products as [out, in]; a tokenizer."""

    entries: dict[str, Any]
    weights: Weights
    tokenizer: tokenizers.Tokenizer

    @property
    def config(self) -> GPT2Config:
        return GPT2Config.from_dict(self.entries)

    def model(self) -> Model:
        """Ours, in memory."""
        config = self.config
        decoder = GPT2(config)
        decoder.load_weights([(name, mx.array(array)) for name, array in self.weights.items()], strict=True)
        mx.eval(decoder.parameters())
        return Model("test", config, decoder, our_tokenizer(self.tokenizer), frozenset(config.eos_token_ids))

    def torch(self) -> Any:
        """transformers' GPT2LMHeadModel."""
        return torch_gpt2(self.entries, self.weights)

    def write(self, folder: Path, layout: str = "transformer.", *, chat_template: str | None = None) -> Path:
        """A model folder in a published layout: config.json, model.safetensors, tokenizer files."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.entries))
        save_file(published(self.weights, layout), str(folder / "model.safetensors"), metadata={"format": "pt"})
        self.tokenizer.save(str(folder / "tokenizer.json"))
        if chat_template is not None:
            settings = {"eos_token": END, "bos_token": END, "chat_template": chat_template}
            (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        return folder


def tiny_gpt2(seed: int = 0, tokenizer: tokenizers.Tokenizer | None = None, **entries: Any) -> TinyGPT2:
    """A GPT-2 of SIZES over the tokenizer's vocabulary; entries: what config.json has else, or other than that."""
    tokenizer = tokenizer or byte_tokenizer()
    end = tokenizer.token_to_id(END)
    whole = {"model_type": "gpt2", "vocab_size": tokenizer.get_vocab_size(), **SIZES}
    whole |= {"bos_token_id": end, "eos_token_id": end, **entries}
    return TinyGPT2(whole, random_weights(GPT2Config.from_dict(whole), seed), tokenizer)


# Tokenizers


def byte_tokenizer() -> tokenizers.Tokenizer:
    """A byte-level BPE: the 256 bytes, some merges, and the end token last."""
    pieces, merges = list(BYTES), []
    for word in ("Ġthe", "Ġand", "Ġfar", "Ġonce", "Ġking", "Ġfrog", "Far", "away"):
        made = word[0]
        for piece in word[1:]:
            if made + piece not in pieces:
                merges.append((made, piece))
                pieces.append(made + piece)
            made += piece
    return _byte_level(pieces, merges, [END])


def letter_tokenizer(letters: Sequence[str] = BYTES) -> tokenizers.Tokenizer:
    """A token a byte, numbered as they stand; then the end token, and the marks of ChatML."""
    return _byte_level(letters, [], [END, *CHAT_MARKS])


def _byte_level(pieces: Sequence[str], merges: list[tuple[str, str]], special: list[str]) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(tokenizers.models.BPE({piece: at for at, piece in enumerate(pieces)}, merges))
    library.pre_tokenizer = ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    library.add_special_tokens(special)
    return library


def our_tokenizer(library: tokenizers.Tokenizer) -> Tokenizer:
    """Our Tokenizer, from the file that the library saves."""
    with tempfile.TemporaryDirectory() as folder:
        library.save(str(Path(folder) / "tokenizer.json"))
        return load_tokenizer(Path(folder))


# Weights


def random_weights(config: GPT2Config, seed: int = 0) -> Weights:
    """Weights that make attention sharp, every bias matter and logits well apart: float32, decoder's names."""
    rng = np.random.default_rng(seed)
    D, inner = config.n_embd, config.n_inner

    def normal(std: float, *shape: int) -> Array:
        return (std * rng.standard_normal(shape)).astype(np.float32)

    wide = 1.5 / math.sqrt(D)
    weights = {
        "model.wte.weight": normal(0.5, config.vocab_size, D),
        "model.wpe.weight": normal(0.5, config.n_positions, D),
    }
    norms = ["model.ln_f"]
    for layer in range(config.n_layer):
        at = f"model.h.{layer}"
        norms += [f"{at}.ln_1", f"{at}.ln_2"]
        products = {
            "attn.c_attn": (3 * D, D, wide),
            "attn.c_proj": (D, D, 0.5 / math.sqrt(D)),
            "mlp.c_fc": (inner, D, wide),
            "mlp.c_proj": (D, inner, 0.5 / math.sqrt(inner)),
        }
        for name, (rows, columns, std) in products.items():
            weights[f"{at}.{name}.weight"] = normal(std, rows, columns)
            weights[f"{at}.{name}.bias"] = normal(0.2, rows)
    for name in norms:
        weights[f"{name}.weight"] = 1 + normal(0.2, D)
        weights[f"{name}.bias"] = normal(0.2, D)
    if not config.tie_word_embeddings:
        weights["lm_head.weight"] = normal(0.5, config.vocab_size, D)
    return weights


def published(weights: Weights, layout: str) -> Weights:
    """The same weights under a published layout's names, with the products as [in, out] where it has them so."""
    if layout == "model.":
        return dict(weights)
    prefix = "" if layout == "bare" else layout
    named = {}
    for name, array in weights.items():
        stored = np.ascontiguousarray(array.T) if name.endswith(PRODUCTS) else array
        named[name if name == "lm_head.weight" else prefix + name.removeprefix("model.")] = stored
    if layout == "bare":  # the mask buffers of OpenAI's files
        for name in [name for name in named if name.endswith("attn.c_attn.bias")]:
            named[name.replace("c_attn.bias", "bias")] = np.tril(np.ones((1, 1, 8, 8), dtype=np.float32))
    return named


def torch_gpt2(entries: dict[str, Any], weights: Weights) -> Any:
    """transformers' GPT-2 with these weights, float32, attention written out."""
    import torch
    import transformers

    torch.set_num_threads(1)
    settings = {name: value for name, value in entries.items() if name != "model_type"}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings, attn_implementation="eager"))
    state = {name: torch.tensor(array) for name, array in published(weights, "transformer.").items()}
    state.setdefault("lm_head.weight", state["transformer.wte.weight"])
    model.load_state_dict(state, strict=True)
    return model.eval()
