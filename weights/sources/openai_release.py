"""OpenAI's release of GPT-2: hparams.json, encoder.json, vocab.bpe and a TensorFlow checkpoint.

Only TensorFlow itself reads that checkpoint, and it is too large a dependency. The same weights are on the hub.
"""

from __future__ import annotations

from pathlib import Path

from mlxgen.errors import ModelError
from mlxgen.json_file import read_json

BY_LAYERS = {12: "gpt2", 24: "gpt2-medium", 36: "gpt2-large", 48: "gpt2-xl"}
PIECES = ("*.ckpt*.index", "*.ckpt*.data-*", "*.ckpt*.meta")  # a PyTorch file may be called model.ckpt


def refuse_release(folder: Path) -> None:
    """Raise ModelError, which names the same model on the hub, if ``folder`` is a TensorFlow checkpoint."""
    if not any(any(folder.glob(piece)) for piece in PIECES) and not (
        (folder / "checkpoint").is_file() and (folder / "hparams.json").is_file()
    ):
        return
    if any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin")):
        return
    layers = read_json(folder / "hparams.json").get("n_layer") if (folder / "hparams.json").is_file() else None
    name = BY_LAYERS.get(layers) if isinstance(layers, int) else None
    if name is None:
        raise ModelError(
            f"{folder}: is a TensorFlow checkpoint, which only TensorFlow reads; convert it to PyTorch with "
            "transformers 4 (convert_gpt2_original_tf_checkpoint_to_pytorch), then the result"
        )
    raise ModelError(
        f"{folder}: is a TensorFlow checkpoint, which only TensorFlow reads. If it is OpenAI's own, "
        f"`mlxgen convert {name}` converts the same weights from openai-community/{name}. If it is a fine-tune, "
        "convert it to PyTorch with transformers 4 (convert_gpt2_original_tf_checkpoint_to_pytorch), then the result"
    )
