"""How much memory a conversion takes: a checkpoint of GPT-2's 355M shape with random weights, in a process of its own.

    python examples/convert_memory.py [--folder FOLDER]

Prints the size of the model and of its largest parameter. Then, for each kind of source and target, it prints the most
memory that the conversion held beyond what the interpreter and MLX need themselves. It writes 5 GB of temporary files
and removes them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

CONFIG = {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 1024, "n_layer": 24, "n_head": 16}
SHARDS = 4
TARGETS = ({}, {"dtype": "float16"}, {"quantize": 4}, {"quantize": 8})


def build(folder: Path) -> None:
    """Write the checkpoint in transformers' layout: in folder/shards as safetensors, in folder/pickled as one .bin."""
    import mlxgen  # noqa: F401  isort: skip  # before MLX
    import mlx.core as mx
    import tokenizers
    import torch

    from mlxgen.network.config import GPT2Config
    from mlxgen.weights.layouts import PRODUCTS, decoder_shapes

    shapes = decoder_shapes(GPT2Config.from_dict(CONFIG))
    names = sorted(shapes)
    weight_map = {}
    state = {}
    for kind in ("shards", "pickled"):
        (folder / kind).mkdir()
    for number in range(SHARDS):
        shard = {}
        for name in names[number::SHARDS]:
            shape = shapes[name][::-1] if name.endswith(PRODUCTS) else shapes[name]
            published = "transformer." + name.removeprefix("model.")
            shard[published] = 0.02 * mx.random.normal(shape)
            state[published] = torch.zeros(shape)
        file = f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"
        mx.save_safetensors(str(folder / "shards" / file), shard)
        weight_map |= dict.fromkeys(shard, file)
    (folder / "shards" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    torch.save(state, folder / "pickled" / "pytorch_model.bin")
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    for kind in ("shards", "pickled"):
        (folder / kind / "config.json").write_text(json.dumps(CONFIG))
        library.save(str(folder / kind / "tokenizer.json"))


def measure(source: Path, out: Path, target: dict[str, Any]) -> dict[str, float]:
    """Convert in this process. Returns the bytes held beyond those held before, and how many seconds it took."""
    from mlxgen.weights import convert

    import mlx.core as mx  # isort: skip

    if source.name == "pickled":
        import torch  # noqa: F401
    mx.eval(mx.quantize(mx.zeros((64, 64))))
    before = resident()
    most = dict(before)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            for kind, value in resident().items():
                most[kind] = max(most[kind], value)

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.perf_counter()
    convert(source, out, force=True, **target)
    seconds = time.perf_counter() - begin
    done.set()
    watcher.join()
    most["all"] = max(most["all"], peak())
    return {kind: most[kind] - before[kind] for kind in most} | {"seconds": seconds}


def resident() -> dict[str, int]:
    """Bytes in memory: all, and those that are not only pages of a file, which the system can drop (Linux)."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {"all": peak(), "anonymous": peak()}
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "RssAnon"))}
    return {"all": kilobytes["VmRSS"] * 1024, "anonymous": kilobytes["RssAnon"] * 1024}


def peak() -> int:
    """The most bytes that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def compare(folder: Path) -> None:
    in_new_process(build, folder)
    model = sum(path.stat().st_size for path in (folder / "shards").glob("*.safetensors"))
    largest = CONFIG["vocab_size"] * CONFIG["n_embd"] * 4
    print(f"the model: {model / 1e6:.0f} MB in float32; its largest parameter: {largest / 1e6:.0f} MB\n")
    print(f"{'source':<9}{'target':<20}{'memory':>10}{'with file pages':>18}{'seconds':>10}")
    for kind in ("shards", "pickled"):
        for target in TARGETS:
            found = in_new_process(measure, folder / kind, folder / "out", target)
            name = " ".join(f"{key} {value}" for key, value in target.items()) or "as stored"
            memory = f"{found['anonymous'] / 1e6:>7.0f} MB{found['all'] / 1e6:>15.0f} MB"
            print(f"{kind:<9}{name:<20}{memory}{found['seconds']:>10.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where to put the temporary files (default: the system's place)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        compare(Path(folder))


if __name__ == "__main__":
    main()
