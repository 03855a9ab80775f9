"""The Flax weights in tests/data/flax: the models in them, and how transformers 4 wrote them.

    python -m tests.support.flax_checkpoints PYTHON

writes them again. PYTHON is that of an environment with transformers 4, torch and flax; this one has the project's
packages.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import mlxgen  # noqa: F401  (first, for its BLAS)

from .models import TinyGPT2, tiny_gpt2

FOLDER = Path(__file__).parent.parent / "data" / "flax"

#: Runs in the other environment: WRITE SOURCE FOLDER TYPE.
WRITE = """
import sys
from transformers import FlaxGPT2LMHeadModel
model = FlaxGPT2LMHeadModel.from_pretrained(sys.argv[1], from_pt=True)
if sys.argv[3] == "bfloat16":
    model.params = model.to_bf16(model.params)
elif sys.argv[3] == "float16":
    model.params = model.to_fp16(model.params)
model.save_pretrained(sys.argv[2])
"""

SIZES = {"n_embd": 4, "n_layer": 2, "n_head": 2, "n_positions": 64}
TYPES = {"tied": "float32", "head": "float32", "halves": "float16", "brains": "bfloat16"}


def model(name: str) -> TinyGPT2:
    return tiny_gpt2(4, **SIZES, tie_word_embeddings=name != "head")


def write(name: str, folder: Path) -> TinyGPT2:
    """Write the folder that transformers wrote, with a tokenizer."""
    tiny = model(name)
    tiny.write(folder)
    (folder / "model.safetensors").unlink()
    shutil.copy(FOLDER / name / "flax_model.msgpack", folder)
    return tiny


def main(python: str) -> None:
    for name, dtype in TYPES.items():
        with tempfile.TemporaryDirectory() as temporary:
            source = model(name).write(Path(temporary) / "source")
            subprocess.run([python, "-c", WRITE, source, FOLDER / name, dtype], check=True)
        for file in FOLDER.glob("*/*.json"):
            file.unlink()  # the tests write them


if __name__ == "__main__":
    main(sys.argv[1])
