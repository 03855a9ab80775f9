"""A random GPT-2 whose tokens are single bytes, as a folder in mlx-lm's layout: made in no time, without torch."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import tokenizers
from mlx.utils import tree_flatten

from mlxgen.network.config import GPT2Config
from mlxgen.network.decoder import GPT2

END = "<|endoftext|>"
SPECIAL = (END, "<|im_start|>", "<|im_end|>")
ALPHABET = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())


def write_model(
    folder: Path, *, template: str | None = None, seed: int = 7, alphabet: Sequence[str] = ALPHABET, **changes: Any
) -> Path:
    """The end token comes first after the alphabet. changes: config.json's entries that differ."""
    folder.mkdir(parents=True, exist_ok=True)
    size, end = len(alphabet) + len(SPECIAL), len(alphabet)
    config = {"model_type": "gpt2", "vocab_size": size, "n_positions": 128, "n_embd": 16, "n_layer": 1, "n_head": 2}
    config |= {"bos_token_id": end, "eos_token_id": end} | changes
    (folder / "config.json").write_text(json.dumps(config))
    mx.random.seed(seed)
    decoder = GPT2(GPT2Config.from_dict(config))
    scale = 4 / config["n_embd"] ** 0.5
    weights = {name: scale * mx.random.normal(old.shape) for name, old in tree_flatten(decoder.parameters())}
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    library = tokenizers.Tokenizer(tokenizers.models.BPE({piece: at for at, piece in enumerate(alphabet)}, []))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    library.add_special_tokens(list(SPECIAL))
    library.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": END, "bos_token": END, "tokenizer_class": "PreTrainedTokenizerFast"}
    settings |= {"chat_template": template} if template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
