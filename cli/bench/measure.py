"""Measure prefill and decode of one text, one side at a time, each run in a process of its own.

All sides get the same weights from one folder and the same random prompts, and compute in float32 on the CPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mlxgen.cli.bench.processes import output_of
from mlxgen.cli.bench.sides import SIDES, blas_setting
from mlxgen.errors import OptionError
from mlxgen.installation import install_command

SHORT_PROMPT = 8  # tokens before a decode through the whole context


@dataclass(frozen=True, slots=True)
class Measurement:
    """The numbers of one run of one side.

    load: seconds to open the folder. first_token: seconds from the prompt's ids to the first token, with the model
    loaded. prefill_tps, decode_tps: tokens per second; prefill is measured in an answer of one token, which comes
    before the longer one that the other numbers are of; decode counts the tokens after the first. memory: the process's
    peak resident bytes. seconds: for each token, the first one including the prompt.
    """

    side: str
    prompt_tokens: int
    new_tokens: int
    load: float
    first_token: float
    prefill_tps: float
    decode_tps: float
    memory: int
    seconds: list[float] = field(repr=False)


def check_installed(sides: list[str]) -> None:
    """Raise OptionError for a side whose packages are not installed."""
    for name in sides:
        if missing := SIDES[name].missing:
            raise OptionError(f"{name} needs {' and '.join(missing)}: `{install_command(*missing)}`")


def check_fits(folder: Path, prompt_tokens: int, new_tokens: int) -> None:
    """Raise OptionError for a run that is longer than the model's context."""
    from mlxgen.network.config import read_config

    positions = read_config(folder).n_positions
    if prompt_tokens + new_tokens > positions:
        raise OptionError(
            f"{prompt_tokens} prompt tokens and {new_tokens} new ones are more than the model's {positions} positions;"
            " lower --prompt-tokens or --max-tokens"
        )


def measure(
    side: str,
    folder: Path,
    *,
    prompt_tokens: int,
    new_tokens: int,
    dtype: str | None = None,
    our_blas: bool = False,
) -> Measurement:
    """Run one side once in a fresh process.

    dtype: the type that mlxgen computes in. our_blas: give the BLAS that mlxgen loads to a peer that runs without it.
    If it fails, raises MlxgenError with the last line of its output.
    """
    arguments = [side, str(folder), str(prompt_tokens), str(new_tokens), *([dtype] if dtype else [])]
    output = output_of(side, "mlxgen.cli.bench.one_run", arguments, blas_setting(side, our_blas))
    return Measurement(side, prompt_tokens, new_tokens, **json.loads(output))


def compare(
    sides: list[str],
    folder: Path,
    *,
    prompt_tokens: int,
    new_tokens: int,
    runs: int = 3,
    dtype: str | None = None,
) -> Iterator[Measurement]:
    """Run every side in turn, A B A B, so that a slow moment of the machine affects them all."""
    for _ in range(runs):
        for side in sides:
            yield measure(side, folder, prompt_tokens=prompt_tokens, new_tokens=new_tokens, dtype=dtype)


def compare_decodes(sides: list[str], folder: Path, runs: int = 3, dtype: str | None = None) -> Iterator[Measurement]:
    """Run every side in turn from a short prompt to the model's last position. See `longest_decode`."""
    return compare(sides, folder, prompt_tokens=SHORT_PROMPT, new_tokens=longest_decode(folder), runs=runs, dtype=dtype)


def longest_decode(folder: Path) -> int:
    """How many tokens fit after a short prompt. Raises OptionError if fewer than two do."""
    from mlxgen.network.config import read_config

    new = read_config(folder).n_positions - SHORT_PROMPT
    if new < 2:
        raise OptionError(
            f"{folder}: decoding through the whole context needs a model of at least {SHORT_PROMPT + 2} positions"
        )
    return new
