"""`mlxgen batch` and `mlxgen score` in several processes at once."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..support.processes import KILLED, dying
from .jsonl_files import command, count_lines, environment, many_prompts, objects

LAUNCH = shutil.which("mlx.launch", path=str(Path(sys.executable).parent))


@pytest.mark.skipif(LAUNCH is None, reason="mlx.launch is not installed")
@pytest.mark.parametrize("verb", ["batch", "score"])
def test_two_ranks_write_what_one_writes(small_folder: Path, tmp_path: Path, verb: str) -> None:
    if verb == "batch":
        many_prompts(tmp_path / "in.jsonl", 31)
        options = ["--max-tokens", "5", "--seed", "7"]
    else:
        (tmp_path / "in.jsonl").write_text("".join(f'"the king {at}"\n' for at in range(31)))
        options = ["--stride", "9"]
    call = [str(tmp_path / "in.jsonl"), *options, "-o"]
    subprocess.run(command(verb, *call, str(tmp_path / "one.jsonl")), env=environment(small_folder), check=True)
    log = launch(tmp_path, small_folder, command(verb, *call, str(tmp_path / "two.jsonl")))
    assert log.count("31 results, 0 errors") == 1  # of both ranks, said by the first
    assert (tmp_path / "two.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    assert sorted(file.name for file in tmp_path.glob("two*")) == ["two.jsonl"]


@pytest.mark.skipif(LAUNCH is None, reason="mlx.launch is not installed")
def test_a_rank_that_dies_is_told_and_its_lines_are_redone(small_folder: Path, tmp_path: Path) -> None:
    many_prompts(tmp_path / "in.jsonl", 200)
    call = ["batch", str(tmp_path / "in.jsonl"), "--max-tokens", "5", "--seed", "7", "--batch-size", "2", "-o"]
    out = tmp_path / "out.jsonl"
    told = launch(tmp_path, small_folder, dying(5000, *call, str(out)))
    assert f"rank 1 exited with code {KILLED}" in told
    assert not out.exists() and 5 <= count_lines(tmp_path / "out.jsonl.rank1") < 100
    # fewer ranks may go on where more were working
    subprocess.run(command(*call, str(out)), env=environment(small_folder), check=True)
    assert [entry["id"] for entry in objects(out.read_text())] == [f"p{at}" for at in range(200)]
    assert sorted(file.name for file in tmp_path.glob("out*")) == ["out.jsonl"]


def launch(tmp_path: Path, small_folder: Path, command: list[str]) -> str:
    """Two ring ranks on this machine; returns what was printed."""
    port = str(random.Random(command[-1]).randint(20_000, 50_000))
    call = [str(LAUNCH), "-n", "2", "--backend", "ring", "--starting-port", port, "--", *command]
    with open(tmp_path / "log", "w+") as log, open(os.devnull) as nothing:
        process = subprocess.Popen(call, env=environment(small_folder), stdin=nothing, stdout=log, stderr=log)
        try:
            process.wait(timeout=120)
        finally:
            process.kill()
        log.seek(0)
        return log.read()
