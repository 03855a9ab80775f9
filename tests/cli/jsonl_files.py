"""Files with a JSON object per line, and commands on them in a process of their own."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def write_lines(path: str, lines: list[Any]) -> None:
    Path(path).write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def many_prompts(path: Path, n: int) -> None:
    rng = random.Random(n)
    lines = [{"id": f"p{at}", "prompt": "".join(rng.choices("the king", k=rng.randint(1, 12)))} for at in range(n)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mlxgen", *arguments]


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "MLXGEN_MODEL": str(folder), "OPENBLAS_NUM_THREADS": "1"}
