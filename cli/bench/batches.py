"""Many prompts at once, as each side answers them: tokens per second of all rows.

python -m mlxgen.cli.bench.batches SIDE FOLDER ROWS SHORTEST LONGEST NEW [DTYPE] prints a line of JSON. All sides choose
greedily and have no end token. The folder needs a tokenizer.json.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlxgen  # before the peers' imports of MLX: it loads the BLAS, unless MLXGEN_BLAS is off
from mlxgen.cli.bench.one_run import peak_memory
from mlxgen.cli.bench.processes import output_of
from mlxgen.cli.bench.sides import blas_setting, open_generator, open_torch

Prompts = list[list[int]]
Answering = Callable[[Prompts, int], list[list[int]]]  # (prompts, new tokens) -> each row's new tokens


@dataclass(frozen=True, slots=True)
class BatchMeasurement:
    """The numbers of one run of one side. Its prompts have shortest to longest tokens.

    tokens_per_second: new tokens of all rows, over the time from the prompts to the last token. decode_tps: the same
    without the prompts and each row's first two tokens. memory: the process's peak resident bytes.
    """

    side: str
    batch_size: int
    shortest: int
    longest: int
    new_tokens: int
    tokens_per_second: float
    decode_tps: float
    memory: int


def measure_batch(
    side: str,
    folder: Path,
    *,
    batch_size: int,
    lengths: tuple[int, int],
    new_tokens: int,
    dtype: str | None = None,
    our_blas: bool = False,
) -> BatchMeasurement:
    """Answer random prompts in a fresh process, whose lengths are drawn from `lengths`, both included.

    dtype: the type that mlxgen computes in. our_blas: give the BLAS that mlxgen loads to a peer that runs without it.
    If it fails, raises MlxgenError with the last line of its output.
    """
    sizes = map(str, (batch_size, *lengths, new_tokens))
    arguments = [side, str(folder), *sizes, *([dtype] if dtype else [])]
    output = output_of(side, "mlxgen.cli.bench.batches", arguments, blas_setting(side, our_blas))
    return BatchMeasurement(side, batch_size, *lengths, new_tokens, **json.loads(output))


def answer_mlxgen(folder: Path, dtype: str | None = None) -> Answering:
    """`mlxgen.batch`."""
    model = mlxgen.load(str(folder), dtype=dtype)

    def answer(prompts: Prompts, new: int) -> list[list[int]]:
        answers = mlxgen.batch(
            model, prompts, batch_size=len(prompts), ordered=True, max_tokens=new, temperature=0, ignore_eos=True
        )
        return [list(answer.tokens) for answer in answers]

    return answer


def answer_mlx_lm(folder: Path) -> Answering:
    """Its BatchGenerator, with room for all rows."""
    from importlib import import_module

    from mlx_lm.utils import load_model

    decoder, _ = load_model(folder)
    generator = import_module("mlx_lm.generate").BatchGenerator

    def answer(prompts: Prompts, new: int) -> list[list[int]]:
        rows = len(prompts)
        running = generator(decoder, max_tokens=new, completion_batch_size=rows, prefill_batch_size=rows)
        tokens: dict[int, list[int]] = {uid: [] for uid in running.insert(prompts)}
        while responses := running.next_generated():
            for response in responses:
                tokens[response.uid].append(response.token)
        return list(tokens.values())

    return answer


def answer_transformers(folder: Path) -> Answering:
    """`generate` on rows that are padded on the left."""
    import torch

    decoder = open_torch(folder)

    def answer(prompts: Prompts, new: int) -> list[list[int]]:
        length = max(map(len, prompts))
        ids = torch.tensor([[0] * (length - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.inference_mode():
            out = decoder.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=0)
        rows: list[list[int]] = out[:, length:].tolist()
        return rows

    return answer


def answer_ctranslate2(folder: Path) -> Answering:
    """`generate_batch` without the prompt in the result, which is its fast way."""
    generator, words = open_generator(folder)

    def answer(prompts: Prompts, new: int) -> list[list[int]]:
        rows = [[words[token] for token in prompt] for prompt in prompts]
        results = generator.generate_batch(
            rows, max_length=new, min_length=new, end_token=[], sampling_topk=1, include_prompt_in_result=False
        )
        return [result.sequences_ids[0] for result in results]

    return answer


ANSWERING: dict[str, Callable[..., Answering]] = {
    "mlxgen": answer_mlxgen,
    "mlx-lm": answer_mlx_lm,
    "transformers": answer_transformers,
    "ctranslate2": answer_ctranslate2,
}


def random_prompts(vocab_size: int, rows: int, lengths: tuple[int, int]) -> Prompts:
    """Prompts of different lengths, the same on every side."""
    chance = random.Random(0)
    return [[chance.randrange(vocab_size) for _ in range(chance.randint(*lengths))] for _ in range(rows)]


def main(side: str, folder: str, rows: str, shortest: str, longest: str, new: str, *dtype: str) -> None:
    vocab_size = json.loads(Path(folder, "config.json").read_text())["vocab_size"]
    prompts = random_prompts(vocab_size, int(rows), (int(shortest), int(longest)))
    answer = ANSWERING[side](Path(folder), *dtype)
    answer([prompt[:8] for prompt in prompts], 2)  # what is set up once does not count
    seconds = {}
    for count in (2, int(new)):
        start = time.perf_counter()
        made = sum(map(len, answer(prompts, count)))
        seconds[count] = time.perf_counter() - start
        assert made == len(prompts) * count, f"{made} tokens"
    rest = seconds[int(new)] - seconds[2]
    numbers = {
        "tokens_per_second": len(prompts) * int(new) / seconds[int(new)],
        "decode_tps": len(prompts) * (int(new) - 2) / rest if rest > 0 else 0.0,
        "memory": peak_memory(),
    }
    print(json.dumps(numbers))


if __name__ == "__main__":
    main(*sys.argv[1:])
