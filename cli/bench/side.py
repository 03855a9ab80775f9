"""One side of a measurement: `python -m mlxgen.cli.bench_side SIDE FOLDER PROMPT NEW BATCH` prints one JSON line."""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

Prompts = list[list[int]]
Runner = Callable[[Prompts, int], Iterator[object]]  # yields once a token, when all rows have it


def open_mlxgen(folder: Path) -> Runner:
    """What mlxgen's own loop does, without text: prefill in chunks, then steps that are sent before they are read."""
    import mlx.core as mx

    from mlxgen.device import lay_out_weights
    from mlxgen.generation.session import Session
    from mlxgen.model import Model
    from mlxgen.network.cache import make_cache
    from mlxgen.sampling.samplers import greedy
    from mlxgen.weights.load import open_decoder

    decoder = open_decoder(folder)
    lay_out_weights(decoder)
    model = Model("bench", decoder.config, decoder, None, frozenset())  # type: ignore[arg-type]  # ids need no text

    def run(prompts: Prompts, new: int) -> Iterator[object]:
        session, cache = Session(model), make_cache(decoder.config.n_layer)

        def rows(ids: mx.array) -> mx.array:
            return decoder.head(decoder.hidden(ids, cache)[:, -1])

        alone = len(prompts) == 1
        if alone:
            session.extend(prompts[0])
        token = greedy(session.prefill() if alone else rows(mx.array(prompts)))
        for n in range(new):
            following = token
            if n + 1 < new:
                following = greedy(session.process(token) if alone else rows(token[:, None]))
            mx.async_eval(token, following)
            yield token.tolist()
            token = following

    return run


def open_mlx_lm(folder: Path) -> Runner:
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import load_model

    decoder, _ = load_model(folder)

    def run(prompts: Prompts, new: int) -> Iterator[object]:
        if len(prompts) == 1:
            from importlib import import_module

            step = import_module("mlx_lm.generate").generate_step
            yield from (token for token, _ in step(mx.array(prompts[0]), decoder, max_tokens=new))
            return
        cache = make_prompt_cache(decoder)  # its generate has one row; its model takes more
        token = mx.argmax(decoder(mx.array(prompts), cache=cache)[:, -1], axis=-1)
        for _ in range(new):
            following = mx.argmax(decoder(token[:, None], cache=cache)[:, -1], axis=-1)
            mx.async_eval(token, following)
            yield token.tolist()
            token = following

    return run


def open_transformers(folder: Path) -> Runner:
    import torch

    decoder = torch_decoder(folder)

    def run(prompts: Prompts, new: int) -> Iterator[object]:
        with torch.inference_mode():
            out = decoder(torch.tensor(prompts), use_cache=True, logits_to_keep=1)
            for index in range(new):
                token = out.logits[:, -1].argmax(-1)
                yield token.tolist()
                if index + 1 < new:
                    out = decoder(token[:, None], past_key_values=out.past_key_values, use_cache=True)

    return run


def open_ctranslate2(folder: Path) -> Runner:
    import ctranslate2

    decoder = torch_decoder(folder)
    words = [f"t{token}" for token in range(decoder.config.vocab_size)]
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch, "source"), Path(scratch, "target")
        decoder.save_pretrained(source)
        specification = ctranslate2.converters.TransformersConverter(str(source), load_as_float16=False)
        specification.load_tokenizer = lambda *_: _Words(words)  # a random model has no tokenizer of its own
        specification.convert(str(target))
        generator = ctranslate2.Generator(str(target), device="cpu", compute_type="float32")

    def run(prompts: Prompts, new: int) -> Iterator[object]:
        rows = [[words[token] for token in prompt] for prompt in prompts]
        yield from generator.generate_tokens(rows, max_length=new, end_token=[], sampling_topk=1)

    return run


class _Words:
    """What CTranslate2's converter asks of a tokenizer."""

    bos_token = eos_token = unk_token = "t0"

    def __init__(self, words: list[str]) -> None:
        self._words = words

    def get_vocab(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self._words)}


def torch_decoder(folder: Path):  # type: ignore[no-untyped-def]  # torch is not always there
    """The same weights in transformers' GPT-2: its Conv1D keeps them as [in, out]."""
    import torch
    from safetensors.torch import load_file
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(**json.loads((folder / "config.json").read_text()), attn_implementation="sdpa")
    decoder = GPT2LMHeadModel(config).eval()
    weights = {}
    for name, value in load_file(folder / "model.safetensors").items():
        conv1d = name.endswith("weight") and ".c_" in name
        weights[name.replace("model.", "transformer.", 1)] = (value.T if conv1d else value).to(torch.float32)
    missing, unexpected = decoder.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    decoder.tie_weights()
    return decoder


def peak_memory() -> int:
    """This process's peak resident size, in bytes. On Linux ru_maxrss would begin with that of the parent process."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    facts = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in facts if line.startswith("VmHWM:"))


OPENERS: dict[str, Callable[[Path], Runner]] = {
    "mlxgen": open_mlxgen,
    "mlx-lm": open_mlx_lm,
    "transformers": open_transformers,
    "ctranslate2": open_ctranslate2,
}


def main(side: str, folder: str, prompt_tokens: str, new_tokens: str, batch_size: str) -> None:
    config = json.loads(Path(folder, "config.json").read_text())
    chance = random.Random(0)
    size, length = config["vocab_size"], int(prompt_tokens)
    prompts = [[chance.randrange(size) for _ in range(length)] for _ in range(int(batch_size))]
    start = time.perf_counter()
    run = OPENERS[side](Path(folder))
    loaded = time.perf_counter()
    for _ in run([prompt[:8] for prompt in prompts], 2):  # what is set up once is not counted
        pass
    times = [time.perf_counter()]
    times += [time.perf_counter() for _ in run(prompts, int(new_tokens))]
    seconds = [after - before for before, after in pairwise(times)]
    first, rest = seconds[0], times[-1] - times[1]
    rows = len(prompts)
    numbers = {
        "load": loaded - start,
        "first_token": first,
        "prefill_tps": rows * int(prompt_tokens) / first,
        "decode_tps": rows * (len(times) - 2) / rest if rest else 0.0,
        "memory": peak_memory(),
        "seconds": seconds,
    }
    print(json.dumps(numbers))


if __name__ == "__main__":
    main(*sys.argv[1:])
