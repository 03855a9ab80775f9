"""A beam search with each side: tokens per second of one beam, with prefill, and the text that is found.

python -m mlxgen.cli.bench.beams SIDE FOLDER PROMPT NEW BEAMS prints a line of JSON. No side has an end token. mlx-lm
has no beam search.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlxgen  # before the peers' imports: it loads the BLAS
from mlxgen.cli.bench.one_run import peak_memory, random_prompt
from mlxgen.cli.bench.processes import output_of
from mlxgen.cli.bench.sides import open_generator, open_torch

Searching = Callable[[list[int], int, int], list[int]]  # (prompt, new tokens, beams) -> the best text's new tokens


@dataclass(frozen=True, slots=True)
class BeamMeasurement:
    """tokens_per_second: steps of all beams. memory: the process's peak resident bytes. tokens: the best text."""

    side: str
    tokens_per_second: float
    memory: int
    tokens: list[int]


def measure_beams(side: str, folder: Path, prompt_tokens: int, new_tokens: int, beams: int) -> BeamMeasurement:
    """Search once, in a fresh process. If it fails, raises MlxgenError with its last line."""
    numbers = map(str, (prompt_tokens, new_tokens, beams))
    return BeamMeasurement(side, **json.loads(output_of(side, "mlxgen.cli.bench.beams", [side, str(folder), *numbers])))


def search_mlxgen(folder: Path) -> Searching:
    model = mlxgen.load(str(folder))

    def search(prompt: list[int], new: int, beams: int) -> list[int]:
        return mlxgen.beam_search(model, prompt, beams=beams, max_tokens=new, ignore_eos=True)[0].tokens

    return search


def search_transformers(folder: Path) -> Searching:
    import torch

    decoder = open_torch(folder)

    def search(prompt: list[int], new: int, beams: int) -> list[int]:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = decoder.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                num_beams=beams,
                max_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
            )
        tokens: list[int] = out[0, len(prompt) :].tolist()
        return tokens

    return search


def search_ctranslate2(folder: Path) -> Searching:
    generator, words = open_generator(folder)

    def search(prompt: list[int], new: int, beams: int) -> list[int]:
        results = generator.generate_batch(
            [[words[token] for token in prompt]],
            beam_size=beams,
            max_length=new,
            min_length=new,
            end_token=[],
            include_prompt_in_result=False,
        )
        tokens: list[int] = results[0].sequences_ids[0]
        return tokens

    return search


SEARCHING: dict[str, Callable[[Path], Searching]] = {
    "mlxgen": search_mlxgen,
    "transformers": search_transformers,
    "ctranslate2": search_ctranslate2,
}


def main(side: str, folder: str, prompt_tokens: str, new: str, beams: str) -> None:
    prompt = random_prompt(Path(folder), int(prompt_tokens))
    search = SEARCHING[side](Path(folder))
    search(prompt[:8], 2, int(beams))  # what is set up once does not count
    start = time.perf_counter()
    tokens = search(prompt, int(new), int(beams))
    seconds = time.perf_counter() - start
    assert len(tokens) == int(new), f"{len(tokens)} tokens"
    print(json.dumps({"tokens_per_second": int(new) / seconds, "memory": peak_memory(), "tokens": tokens}))


if __name__ == "__main__":
    main(*sys.argv[1:])
