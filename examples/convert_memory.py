"""How much memory a conversion takes: a 355M-shaped checkpoint in shards, random weights, in a process of its own.

    python examples/convert_memory.py [FOLDER]

Prints the model's size, the largest parameter's, and for each kind of source and target the most memory that the
conversion held above what the interpreter and MLX take themselves. FOLDER (a temporary one by default) needs 5 GB.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

CONFIG = {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 1024, "n_layer": 24, "n_head": 16}
SHARDS = 4
SIDES = ({}, {"dtype": "float16"}, {"quantize": 4}, {"quantize": 8})


def build(folder: Path) -> None:
    """The checkpoint in transformers' layout, as shards of safetensors and as one .bin."""
    import mlxgen  # isort: skip  # before MLX
    import mlx.core as mx
    import torch

    from mlxgen.network.config import GPT2Config
    from mlxgen.weights.layouts import PRODUCTS, decoder_shapes

    del mlxgen
    shapes = decoder_shapes(GPT2Config.from_dict(CONFIG))
    names = sorted(shapes)
    weight_map = {}
    state = {}
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
    import tokenizers

    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    for kind in ("shards", "pickled"):
        (folder / kind / "config.json").write_text(json.dumps(CONFIG))
        library.save(str(folder / kind / "tokenizer.json"))


def measure(source: str, out: str, options: str) -> None:
    """Convert in this process; print the resident memory before, the most during, and the part of it in files."""
    from mlxgen.weights import convert

    import mlx.core as mx  # isort: skip

    if "pickled" in source:
        import torch  # noqa: F401
    mx.eval(mx.quantize(mx.zeros((64, 64))))
    before = resident()
    most = {"anonymous": before["anonymous"], "all": before["all"]}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            now = resident()
            for kind, value in now.items():
                most[kind] = max(most[kind], value)

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.perf_counter()
    convert(source, out, force=True, **json.loads(options))
    seconds = time.perf_counter() - begin
    done.set()
    watcher.join()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak *= 1 if sys.platform == "darwin" else 1024
    most["all"] = max(most["all"], peak)
    print(json.dumps({kind: most[kind] - before[kind] for kind in most} | {"seconds": seconds}))


def resident() -> dict[str, int]:
    """Bytes in memory: all, and those that are not merely a file's pages, which the system can drop (Linux)."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"all": now, "anonymous": now}
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "RssAnon"))}
    return {"all": kilobytes["VmRSS"] * 1024, "anonymous": kilobytes["RssAnon"] * 1024}


def main(folder: Path) -> None:
    for kind in ("shards", "pickled"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, __file__, "--build", str(folder)], check=True)
    model = sum(path.stat().st_size for path in (folder / "shards").glob("*.safetensors"))
    largest = CONFIG["vocab_size"] * CONFIG["n_embd"] * 4
    print(f"the model: {model / 1e6:.0f} MB in float32; its largest parameter: {largest / 1e6:.0f} MB\n")
    print(f"{'source':<9}{'target':<20}{'memory':>10}{'with file pages':>18}{'seconds':>10}")
    for kind in ("shards", "pickled"):
        for options in SIDES:
            command = [
                sys.executable,
                __file__,
                "--measure",
                str(folder / kind),
                str(folder / "out"),
                json.dumps(options),
            ]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            target = " ".join(f"{key} {value}" for key, value in options.items()) or "as stored"
            memory = f"{found['anonymous'] / 1e6:>7.0f} MB{found['all'] / 1e6:>15.0f} MB"
            print(f"{kind:<9}{target:<20}{memory}{found['seconds']:>10.1f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--build"]:
        build(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["--measure"]:
        measure(*sys.argv[2:])
    elif len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
