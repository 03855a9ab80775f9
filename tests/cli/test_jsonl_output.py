"""The output of `mlxgen batch` and `mlxgen score`: resumed after any interruption, and never another file's."""

import fcntl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from mlxgen.generation import batching

from ..support.processes import KILLED, dying
from .jsonl_files import command, count_lines, environment, many_prompts, objects, write_lines


def test_a_rerun_does_only_what_is_missing(run_here: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines("in.jsonl", ['"a"', "broken", {"prompt": "b", "num_samples": 3}, '"c"'])
    command = ("batch", "in.jsonl", "-o", "out.jsonl", "-n", "4", "--seed", "2")
    assert run_here(*command).exit_code == 1
    whole = Path("out.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    for kept in ([0, 3], [4, 2], [], [0, 1, 2, 3, 4, 5]):
        for torn in (b"", b'{"id": 4, "sam', lines[5].rstrip()):
            if torn == lines[5].rstrip() and 5 in kept:
                continue
            Path("out.jsonl").write_bytes(b"".join(lines[at] for at in kept) + torn)
            assert run_here(*command).exit_code == 1
            assert Path("out.jsonl").read_bytes() == whole
    write_lines("in.jsonl", ['"a"', '"mended"', {"prompt": "b", "num_samples": 3}, '"c"'])
    asked = []

    def watched(model: Any, prompts: Any, **options: Any) -> Any:
        return batching.outcomes(model, (asked.append(prompt.prompt) or prompt for prompt in prompts), **options)  # type: ignore[func-returns-value]

    monkeypatch.setattr("mlxgen.cli.jsonl.batch_lines.outcomes", watched)
    assert run_here(*command).exit_code == 0
    assert asked == ["mended"]
    assert run_here(*command, "--overwrite").exit_code == 0
    assert asked == ["mended", "a", "mended", "b", "c"]


@pytest.mark.parametrize("verb", ["batch", "score"])
def test_a_rerun_answers_what_is_asked_now(run_here: Callable[..., Result], verb: str) -> None:
    key, options = ("prompt", ["-n", "3", "--seed", "1"]) if verb == "batch" else ("text", [])
    first = [{key: "a"}, {key: "b", "id": "x"}, {key: "c", "metadata": 1}, {key: "d"}, {key: "e"}]
    then = [{key: "A"}, {key: "b", "id": "x"}, {key: "c", "metadata": 2}, "broken"]
    more = ["-n", "4"] if verb == "batch" else ["--per-token"]
    for lines, extra in ((first, []), (then, []), (then, more), (first[:1], [])):
        write_lines("in.jsonl", lines)
        again = run_here(verb, "in.jsonl", *options, *extra, "-o", "out.jsonl")
        fresh = run_here(verb, "in.jsonl", *options, *extra, "-o", "fresh.jsonl", "--overwrite")
        assert again.exit_code == fresh.exit_code == int("broken" in lines)
        assert Path("out.jsonl").read_text() == Path("fresh.jsonl").read_text()


def test_more_samples_are_added_to_those_that_are_there(run_here: Callable[..., Result]) -> None:
    write_lines("in.jsonl", ['"a"'])
    run_here("batch", "in.jsonl", "-n", "3", "--seed", "1", "-o", "out.jsonl")
    one = Path("out.jsonl").read_text().replace('"prompt_tokens": 1', '"prompt_tokens": 99')
    Path("out.jsonl").write_text(one)
    run_here("batch", "in.jsonl", "-n", "3", "--seed", "1", "--num-samples", "2", "-o", "out.jsonl")
    assert Path("out.jsonl").read_text().startswith(one) and count_lines(Path("out.jsonl")) == 2
    write_lines("in.jsonl", [{"prompt": "a", "num_samples": 3}])
    run_here("batch", "in.jsonl", "-n", "3", "--seed", "1", "-o", "out.jsonl")
    assert Path("out.jsonl").read_text().startswith(one) and count_lines(Path("out.jsonl")) == 3


def test_a_file_that_is_not_ours_is_left_alone(run_here: Callable[..., Result]) -> None:
    Path("in.txt").write_text("a\n")
    Path("out.jsonl").write_text("my notes\nall of them\n")
    result = run_here("batch", "in.txt", "-o", "out.jsonl")
    assert result.exit_code == 1 and "is not a result of this command" in result.stderr
    assert Path("out.jsonl").read_text() == "my notes\nall of them\n"
    result = run_here("batch", "in.txt", "-o", "in.txt")
    assert result.exit_code == 2 and "both input and output" in result.stderr
    assert run_here("batch", "in.txt", "-o", ".").exit_code == 1
    assert run_here("batch", "missing.txt").exit_code == 1


@pytest.mark.parametrize(
    "foreign",
    [
        '{"id": 1, "text": "mine"}\n',
        '{"id": 1, "sample": 0, "tokens": [5]}\n',
        '{"id": [1], "sample": 0, "tokens": [5], "request": "x"}\n',
        '{"id": 1, "sample": [0], "tokens": [5], "request": "x"}\n',
        '{"id": 1, "total": -2.5, "request": "x"}\n',
        '{"id": 1, "error": "mine"}\n',
        '{"id": 1, "line": "x", "error": "mine"}\n',
        '{"id": 1, "line": 1, "error": "mine", "more": 1}\n',
        "[" * 100_000 + "\n",
        "[1]\n",
        "a note without a line break",
        '{"id": 1, "text": "mine"}',
    ],
)
@pytest.mark.parametrize("verb", ["batch", "score"])
def test_lines_that_this_command_did_not_write_are_refused(
    run_here: Callable[..., Result], verb: str, foreign: str
) -> None:
    if verb == "score":
        foreign = foreign.replace('"total"', '"tokens"')
    write_lines("in.jsonl", ['"a"'])
    Path("out.jsonl").write_text(foreign)
    result = run_here(verb, "in.jsonl", "-o", "out.jsonl")
    assert result.exit_code == 1 and "out.jsonl, line 1 is not a result of this command" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert Path("out.jsonl").read_text() == foreign
    assert sorted(path.name for path in Path().iterdir()) == ["in.jsonl", "out.jsonl"]
    assert run_here(verb, "in.jsonl", "-o", "out.jsonl", "--overwrite").exit_code == 0


def test_two_runs_do_not_write_one_file(run_here: Callable[..., Result]) -> None:
    write_lines("in.jsonl", ['"a"'])
    Path("out.jsonl.lock").touch()  # left by a run that was killed: nobody holds it
    with open("out.jsonl.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = run_here("batch", "in.jsonl", "-n", "3", "-o", "out.jsonl", "--overwrite")
        assert result.exit_code == 1 and "another run is writing out.jsonl" in result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert not Path("out.jsonl").exists() and Path("out.jsonl.lock").exists()
    assert run_here("batch", "in.jsonl", "-n", "3", "-o", "out.jsonl").exit_code == 0
    assert not Path("out.jsonl.lock").exists()


def test_killed_three_times_each_prompt_is_answered_once(small_folder: Path, tmp_path: Path) -> None:
    many_prompts(tmp_path / "in.jsonl", 500)
    call = ["batch", str(tmp_path / "in.jsonl"), "-n", "5", "--seed", "7", "--batch-size", "16", "-o"]
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    subprocess.run(command(*call, str(whole)), env=environment(small_folder), check=True, timeout=250)
    torn = 0
    for part in (0.1, 0.5, 0.9):
        size = int(part * whole.stat().st_size)
        killed = subprocess.run(
            dying(size, *call, str(out)), env=environment(small_folder), check=False, capture_output=True, timeout=250
        )
        assert killed.returncode == KILLED, killed.stderr
        assert size - 1000 < out.stat().st_size <= size
        torn += not out.read_bytes().endswith(b"\n")
    assert torn > 0
    subprocess.run(command(*call, str(out)), env=environment(small_folder), check=True, timeout=250)
    assert [entry["id"] for entry in objects(out.read_text())] == [f"p{at}" for at in range(500)]
    assert out.read_bytes() == whole.read_bytes()
