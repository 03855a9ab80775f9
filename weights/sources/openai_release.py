"""OpenAI's release of GPT-2, and fine-tunes of it: hparams.json, encoder.json, vocab.bpe and a TensorFlow checkpoint.

gpt-2-simple keeps a fine-tune in checkpoint/run1, with the same files and checkpoints called model-1000. The variables
are called model/h0/attn/c_attn/w and so on. The weights of layers are [1, in, out], as in OpenAI's own layout but for
the first axis. GELU is the one by tanh.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxgen.errors import ModelError
from mlxgen.json_file import read_json
from mlxgen.regular_file import open_regular
from mlxgen.weights.files.recognition import TENSORFLOW, recognise_file
from mlxgen.weights.layouts import listed
from mlxgen.weights.sources.checkpoint import Checkpoint, LazyTensor
from mlxgen.weights.sources.tensorflow_bundle import lazy_tensor, read_index

HPARAMS = "hparams.json"
NEWEST = "checkpoint"  # the file that names the newest checkpoint of its folder
PIECE = re.compile(r"(.+)\.(?:index|meta|data-\d{5}-of-\d{5})")
PATTERNS = ("*.index", "*.meta", "*.data-*-of-*")
BLOCK = r"h(\d+)/(ln_1|ln_2|attn/c_attn|attn/c_proj|mlp/c_fc|mlp/c_proj)/([gbw])"
VARIABLE = re.compile(rf"model/(?:(wte|wpe)|ln_f/([gb])|{BLOCK})")
KINDS = {"g": "weight", "w": "weight", "b": "bias"}

ENTRIES: dict[str, Any] = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}
SPELLINGS = {"n_vocab": "vocab_size", "n_ctx": "n_positions"}  # of hparams.json and of config.json


def find_checkpoint(folder: Path) -> Path | None:
    """The index of the newest TensorFlow checkpoint in a folder, None if it has none.

    Raises ModelError where several are there and none is said to be the newest.
    """
    files = [path for pattern in PATTERNS for path in folder.glob(pattern)]
    names = {
        found[1]
        for path in files
        if (found := PIECE.fullmatch(path.name)) and (kind := recognise_file(path)) and kind.what == TENSORFLOW
    }
    newest = _newest(folder)
    if newest is not None and newest not in names and (kind := recognise_file(single := folder / newest)):
        raise ModelError(f"{single}: is {kind.what}; {kind.advice_for(single)}")  # of version 1: a single file
    if newest is not None and (newest in names or (not names and (folder / HPARAMS).is_file())):
        return folder / f"{newest}.index"
    if len(names) > 1:
        examples = ", ".join(sorted(f"{name}.index" for name in names)[:2]) + (", …" if len(names) > 2 else "")
        raise ModelError(f"{folder}: contains several checkpoints ({examples}); give the path of one")
    return folder / f"{names.pop()}.index" if names else None


def open_release(path: Path, config: Path | None) -> Checkpoint:
    """The checkpoint that a file of it belongs to. config: hparams.json or a config.json. Raises ModelError."""
    if path.name == NEWEST:
        found = find_checkpoint(path.parent)
        if found is None:
            raise ModelError(f"{path}: names a checkpoint that is missing; give the folder of one")
        path = found
    piece = PIECE.fullmatch(path.name)
    index = path.with_name(f"{piece[1]}.index") if piece else path
    if not index.is_file():
        raise ModelError(f"{index}: is missing, and so the checkpoint is not complete; download it")
    tensors = _weights(index)
    given = config or next((file for name in (HPARAMS, "config.json") if (file := index.parent / name).is_file()), None)
    if given is None:
        raise ModelError(f"{index.parent}: has no {HPARAMS}; give it with --config")
    return Checkpoint("TensorFlow checkpoint", _entries(given), tensors, index.parent, index, given.name)


def _newest(folder: Path) -> str | None:
    """The name in the first line of the file "checkpoint": model_checkpoint_path: "model-1000"."""
    try:
        with open_regular(folder / NEWEST) as file:
            line = file.readline(4096)
    except OSError:
        return None
    found = re.match(rb'model_checkpoint_path: "(?:[^"]*[/\\])?([\w.-]+)"', line)
    return found[1].decode() if found else None


def _weights(index: Path) -> dict[str, LazyTensor]:
    """The variables of the model in OpenAI's layout. Those of the optimizer are left out."""
    tensors: dict[str, LazyTensor] = {}
    found = read_index(index)
    for name, entry in found.items():
        variable = VARIABLE.fullmatch(name)
        if variable is None:
            continue
        embedding, norm, layer, module, kind = variable.groups()
        shape = entry.shape
        if kind == "w" and len(shape) == 3 and shape[0] == 1:
            shape = shape[1:]
        if embedding:
            plain = f"{embedding}.weight"
        elif norm:
            plain = f"ln_f.{KINDS[norm]}"
        else:
            plain = f"h.{layer}.{module.replace('/', '.')}.{KINDS[kind]}"
        tensors[plain] = lazy_tensor(name, entry, shape)
    if not tensors:
        raise ModelError(f"{index}: not the weights of OpenAI's GPT-2 (it contains {listed(found, 3)})")
    return tensors


def _entries(settings: Path) -> dict[str, Any]:
    """The entries of a config.json, from one or from hparams.json. Raises ModelError."""
    raw: Mapping[str, Any] = read_json(settings)
    entries = ENTRIES | {SPELLINGS.get(name, name): value for name, value in raw.items()}
    if entries.get("n_head") is None:
        raise ModelError(f"{settings}: has no n_head, the number of attention heads")
    return entries
