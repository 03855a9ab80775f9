"""The TensorFlow checkpoints in tests/data/tensorflow: the models in them, and how TensorFlow 2 wrote them.

    python -m tests.support.tensorflow_checkpoints PYTHON

writes them again. PYTHON is that of an environment with TensorFlow; this one has the project's packages.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import mlxgen  # noqa: F401  (first, for its BLAS)

from .models import PRODUCTS, TinyGPT2, Weights, tiny_gpt2

FOLDER = Path(__file__).parent.parent / "data" / "tensorflow"

#: Runs in TensorFlow's environment: WRITE ARRAYS FOLDER.
WRITE = """
import sys
import numpy as np
import tensorflow as tf
v1 = tf.compat.v1
arrays, folder = np.load(sys.argv[1]), sys.argv[2]
models = {}
for key in arrays.files:
    model, name = key.split(":")
    models.setdefault(model, {})[name] = arrays[key]

def save(model, path, *, optimizer=False, version=v1.train.SaverDef.V2, steps=(None,)):
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [v1.get_variable(name, initializer=array) for name, array in models[model].items()]
        if optimizer:
            step = v1.train.get_or_create_global_step()
            loss = tf.add_n([tf.reduce_sum(variable) for variable in variables])
            v1.train.AdamOptimizer().minimize(loss, global_step=step)
        saver = v1.train.Saver(write_version=version, save_relative_paths=True)
        session.run(v1.global_variables_initializer())
        for at in steps:
            saver.save(session, f"{folder}/{path}", global_step=at, write_meta_graph=False)

def save_tensors(prefix, tensors):
    names = list(tensors)
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names),
                      tensors=[tensors[name] for name in names])

save("large", "release/model.ckpt")
save("other", "run1/model", steps=(5,))
save("small", "run1/model", steps=(10,))  # the file "checkpoint" names this one
save("small", "optimizer/model.ckpt", optimizer=True)
save("small", "first/model.ckpt", version=v1.train.SaverDef.V1)
names = sorted(models["small"])
for part, half in enumerate((names[::2], names[1::2])):
    save_tensors(f"{folder}/sharded/part{part}", {name: models["small"][name] for name in half})
tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=[f"{folder}/sharded/part{part}" for part in (0, 1)],
                              destination_prefix=f"{folder}/sharded/model-7", delete_old_dirs=False)
types = (tf.float16, tf.bfloat16)
save_tensors(f"{folder}/halves/model.ckpt",
             {name: tf.cast(models["small"][name], types[at % 2]) for at, name in enumerate(names)})
"""


def large() -> TinyGPT2:
    return tiny_gpt2(1, n_embd=8, n_layer=2, n_head=2, n_positions=64)


def small() -> TinyGPT2:
    return tiny_gpt2(2, n_embd=4, n_layer=1, n_head=2, n_positions=64)


def other() -> TinyGPT2:
    return tiny_gpt2(3, n_embd=4, n_layer=1, n_head=2, n_positions=64)


def variables(weights: Weights) -> Weights:
    """The weights as the variables of OpenAI's code, whose products are [1, in, out]."""
    named = {}
    for name, array in weights.items():
        path = name.removeprefix("model.").replace("h.", "h").replace(".", "/")
        if path in ("wte/weight", "wpe/weight"):
            path = path.removesuffix("/weight")
        else:
            kind = "b" if path.endswith("bias") else "w" if name.endswith(PRODUCTS) else "g"
            path = f"{path.rpartition('/')[0]}/{kind}"
        named[f"model/{path}"] = array.T[None] if name.endswith(PRODUCTS) else array
    return named


def add_small_files(folder: Path, model: TinyGPT2) -> Path:
    """OpenAI's hparams.json, encoder.json and vocab.bpe."""
    config = model.config
    sizes = {"n_vocab": config.vocab_size, "n_ctx": config.n_positions, "n_embd": config.n_embd}
    (folder / "hparams.json").write_text(json.dumps({**sizes, "n_head": config.n_head, "n_layer": config.n_layer}))
    bpe = json.loads(model.tokenizer.to_str())["model"]
    vocabulary = model.tokenizer.get_vocab()
    (folder / "encoder.json").write_text(json.dumps(vocabulary))
    merges = "\n".join(" ".join(pair) for pair in bpe["merges"])
    (folder / "vocab.bpe").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
    return folder


def main(python: str) -> None:
    arrays = {
        f"{model.__name__}:{name}": array
        for model in (large, small, other)
        for name, array in variables(model().weights).items()
    }
    for name in ("release", "run1", "optimizer", "first", "sharded", "halves"):
        (FOLDER / name).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "arrays.npz"
        np.savez(file, **arrays)
        subprocess.run([python, "-c", WRITE, file, FOLDER], check=True)


if __name__ == "__main__":
    main(sys.argv[1])
