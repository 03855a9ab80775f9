"""`mlxgen batch` and `mlxgen score` on many lines: formats, failures, interruptions, several ranks."""

import fcntl
import importlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import mlxgen
from mlxgen.cli.main import main

from ..support.models import tiny_gpt2
from ..support.processes import KILLED, dying


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = tiny_gpt2(n_positions=32, n_embd=16, n_layer=1, n_head=2)
    return tiny.write(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """run("batch", "in.jsonl", ...) in an empty folder, on the tiny model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLXGEN_MODEL", str(folder))

    def call(*arguments: str, stdin: str | bytes = "") -> Result:
        return CliRunner().invoke(main, list(arguments), input=stdin)

    return call


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def write_lines(path: str, lines: list[Any]) -> None:
    Path(path).write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))


def test_each_line_is_answered_with_its_own_options(run: Callable[..., Result], folder: Path) -> None:
    write_lines(
        "in.jsonl",
        [
            '"the king"',
            {"prompt": "a", "id": "x", "max_tokens": 3, "temperature": 0, "metadata": {"n": [1, None]}},
            "",
            {"prompt": [5, 6], "seed": 4, "top_k": None, "top_p": 0.5, "num_samples": 2},
        ],
    )
    result = run("batch", "in.jsonl", "-o", "out.jsonl", "-n", "6", "--seed", "3", "--ignore-eos", "--logprobs")
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    found = objects(Path("out.jsonl").read_text())
    assert [(entry["id"], entry["sample"]) for entry in found] == [(1, 0), ("x", 0), (4, 0), (4, 1)]
    assert found[1]["metadata"] == {"n": [1, None]} and "metadata" not in found[0]
    model = mlxgen.load(str(folder))
    expected = [
        mlxgen.generate(model, "the king", max_tokens=6, seed=3, ignore_eos=True),
        mlxgen.generate(model, "a", max_tokens=3, temperature=0, ignore_eos=True),
        mlxgen.generate(model, [5, 6], max_tokens=6, seed=4, top_k=None, top_p=0.5, ignore_eos=True),
    ]
    for entry, alone in zip(found, expected, strict=False):
        assert (entry["text"], entry["tokens"], entry["finish_reason"], entry["prompt"]) == (
            alone.text,
            alone.tokens,
            alone.finish_reason,
            alone.prompt,
        )
        assert entry["logprobs"] == pytest.approx(alone.logprobs, abs=1e-4)
        assert entry["prompt_tokens"] == len(alone.prompt_tokens)
    assert found[0]["seed"] == 3 and found[1]["seed"] is None and found[2]["seed"] == 4


def test_standard_input_and_plain_text(run: Callable[..., Result]) -> None:
    result = run("batch", "-n", "2", stdin='the king\r\n\n"a"\n')
    assert [(entry["id"], entry["prompt"]) for entry in objects(result.stdout)] == [(1, "the king"), (3, '"a"')]
    result = run("batch", "-", "-o", "-", "-n", "2", stdin='"the king"\n{"prompt": "a"}\n')
    assert [entry["prompt"] for entry in objects(result.stdout)] == ["the king", "a"]
    result = run("batch", "--format", "text", "-n", "2", stdin='{"a"}\n')
    assert [entry["prompt"] for entry in objects(result.stdout)] == ['{"a"}']


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "the line is not JSON"),
        ("[1]", "the line must be a JSON string or object"),
        ('{"prompt": NaN}', "NaN is not a JSON number"),
        ("[" * 100_000, "the line is not JSON"),
        ({"text": "a"}, "unknown key 'text'"),
        ({"id": "x"}, "prompt is missing"),
        ({"prompt": 5}, "prompt must be text or a list of token ids"),
        ({"prompt": "a" * 33}, "the prompt has 33 tokens, more than the model's 32 positions"),
        ({"prompt": [999]}, "token id 999 is outside the vocabulary"),
        ({"prompt": "\ud800"}, "half of a character"),
        ({"prompt": "a", "temperature": -1}, "temperature must be 0"),
        ({"prompt": "a", "temperature": "hot"}, "temperature must be 0"),
        ({"prompt": "a", "max_tokens": "9"}, "max_tokens must be"),
        ({"prompt": "a", "num_samples": 1.5}, "num_samples must be"),
        ({"prompt": "a", "stop": [1]}, "stop must be a text or a list of texts"),
        ({"prompt": "a", "stop": ""}, "a stop text must not be empty"),
        ({"prompt": "a", "seed": -1}, "seed must be"),
        ({"prompt": "a", "ignore_eos": 1}, "ignore_eos must be true or false"),
        ({"prompt": "a", "id": [1]}, "id must be text or a whole number"),
        ({"prompt": "a", "id": "first"}, 'id "first" is already used by line 1'),
    ],
)
def test_a_bad_line_becomes_an_error_and_the_rest_goes_on(run: Callable[..., Result], line: Any, message: str) -> None:
    write_lines("in.jsonl", [{"prompt": "a", "id": "first"}, line, '"last"'])
    result = run("batch", "in.jsonl", "-o", "out.jsonl", "-n", "2", "--seed", "1")
    assert result.exit_code == 1
    assert "1 of 3 lines failed" in result.stderr
    first, failed, last = objects(Path("out.jsonl").read_text())
    assert (first["id"], last["id"]) == ("first", 3)
    assert failed["line"] == 2 and message in failed["error"]


def test_a_rerun_does_only_what_is_missing(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines("in.jsonl", ['"a"', "broken", {"prompt": "b", "num_samples": 3}, '"c"'])
    command = ("batch", "in.jsonl", "-o", "out.jsonl", "-n", "4", "--seed", "2")
    assert run(*command).exit_code == 1
    whole = Path("out.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    for kept in ([0, 3], [4, 2], [], [0, 1, 2, 3, 4, 5]):
        for torn in (b"", b'{"id": 4, "sam', lines[5].rstrip()):
            if torn == lines[5].rstrip() and 5 in kept:
                continue
            Path("out.jsonl").write_bytes(b"".join(lines[at] for at in kept) + torn)
            assert run(*command).exit_code == 1
            assert Path("out.jsonl").read_bytes() == whole
    write_lines("in.jsonl", ['"a"', '"mended"', {"prompt": "b", "num_samples": 3}, '"c"'])
    asked = []
    batch_module = importlib.import_module("mlxgen.generation.batching")
    outcomes = batch_module.outcomes

    def watched(model: Any, prompts: Any, **options: Any) -> Any:
        return outcomes(model, (asked.append(prompt.prompt) or prompt for prompt in prompts), **options)  # type: ignore[func-returns-value]

    monkeypatch.setattr(batch_module, "outcomes", watched)
    assert run(*command).exit_code == 0
    assert asked == ["mended"]
    assert run(*command, "--overwrite").exit_code == 0
    assert asked == ["mended", "a", "mended", "b", "c"]


def test_a_file_that_is_not_ours_is_left_alone(run: Callable[..., Result]) -> None:
    Path("in.txt").write_text("a\n")
    Path("out.jsonl").write_text("my notes\nall of them\n")
    result = run("batch", "in.txt", "-o", "out.jsonl")
    assert result.exit_code == 1 and "is not a result of this command" in result.stderr
    assert Path("out.jsonl").read_text() == "my notes\nall of them\n"
    result = run("batch", "in.txt", "-o", "in.txt")
    assert result.exit_code == 2 and "both input and output" in result.stderr
    assert run("batch", "in.txt", "-o", ".").exit_code == 1
    assert run("batch", "missing.txt").exit_code == 1


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
def test_lines_that_this_command_did_not_write_are_refused(run: Callable[..., Result], verb: str, foreign: str) -> None:
    if verb == "score":
        foreign = foreign.replace('"total"', '"tokens"')
    write_lines("in.jsonl", ['"a"'])
    Path("out.jsonl").write_text(foreign)
    result = run(verb, "in.jsonl", "-o", "out.jsonl")
    assert result.exit_code == 1 and "out.jsonl, line 1 is not a result of this command" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert Path("out.jsonl").read_text() == foreign
    assert sorted(path.name for path in Path().iterdir()) == ["in.jsonl", "out.jsonl"]
    assert run(verb, "in.jsonl", "-o", "out.jsonl", "--overwrite").exit_code == 0


@pytest.mark.parametrize("verb", ["batch", "score"])
def test_a_rerun_answers_what_is_asked_now(run: Callable[..., Result], verb: str) -> None:
    key, options = ("prompt", ["-n", "3", "--seed", "1"]) if verb == "batch" else ("text", [])
    first = [{key: "a"}, {key: "b", "id": "x"}, {key: "c", "metadata": 1}, {key: "d"}, {key: "e"}]
    then = [{key: "A"}, {key: "b", "id": "x"}, {key: "c", "metadata": 2}, "broken"]
    more = ["-n", "4"] if verb == "batch" else ["--per-token"]
    for lines, extra in ((first, []), (then, []), (then, more), (first[:1], [])):
        write_lines("in.jsonl", lines)
        again = run(verb, "in.jsonl", *options, *extra, "-o", "out.jsonl")
        fresh = run(verb, "in.jsonl", *options, *extra, "-o", "fresh.jsonl", "--overwrite")
        assert again.exit_code == fresh.exit_code == int("broken" in lines)
        assert Path("out.jsonl").read_text() == Path("fresh.jsonl").read_text()


def test_more_samples_are_added_to_those_that_are_there(run: Callable[..., Result]) -> None:
    write_lines("in.jsonl", ['"a"'])
    run("batch", "in.jsonl", "-n", "3", "--seed", "1", "-o", "out.jsonl")
    one = Path("out.jsonl").read_text().replace('"prompt_tokens": 1', '"prompt_tokens": 99')
    Path("out.jsonl").write_text(one)
    run("batch", "in.jsonl", "-n", "3", "--seed", "1", "--num-samples", "2", "-o", "out.jsonl")
    assert Path("out.jsonl").read_text().startswith(one) and count(Path("out.jsonl")) == 2
    write_lines("in.jsonl", [{"prompt": "a", "num_samples": 3}])
    run("batch", "in.jsonl", "-n", "3", "--seed", "1", "-o", "out.jsonl")
    assert Path("out.jsonl").read_text().startswith(one) and count(Path("out.jsonl")) == 3


def test_two_runs_do_not_write_one_file(run: Callable[..., Result]) -> None:
    write_lines("in.jsonl", ['"a"'])
    Path("out.jsonl.lock").touch()  # left by a run that was killed: nobody holds it
    with open("out.jsonl.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = run("batch", "in.jsonl", "-n", "3", "-o", "out.jsonl", "--overwrite")
        assert result.exit_code == 1 and "another run is writing out.jsonl" in result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert not Path("out.jsonl").exists() and Path("out.jsonl.lock").exists()
    assert run("batch", "in.jsonl", "-n", "3", "-o", "out.jsonl").exit_code == 0
    assert not Path("out.jsonl.lock").exists()


def test_the_bar_counts_lines_when_nothing_more_comes_of_them(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[int] = []
    monkeypatch.setattr("mlxgen.cli.jsonl.run.chatty", lambda *_: True)
    monkeypatch.setattr("mlxgen.cli.progress.stderr_is_terminal", lambda: True)
    monkeypatch.setattr("mlxgen.cli.progress.ProgressBar.__call__", lambda _, finished, *__: shown.append(finished))
    write_lines("in.jsonl", [{"prompt": "a", "num_samples": 3, "max_tokens": 5}, "broken", {"prompt": "b"}])
    run("batch", "in.jsonl", "-n", "2", "--ignore-eos", "--seed", "1", "-o", "out.jsonl")
    assert shown == [1, 2, 2, 2, 3]  # the broken line and the short one, then the third of the samples
    shown.clear()
    run("batch", "in.jsonl", "-n", "2", "--ignore-eos", "--seed", "1", "-o", "out.jsonl")
    assert shown == [2]  # the first was done already; the last is, without an outcome


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mlxgen", *arguments]


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "MLXGEN_MODEL": str(folder), "OPENBLAS_NUM_THREADS": "1"}


def count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def many_prompts(path: Path, n: int) -> None:
    rng = random.Random(n)
    lines = [{"id": f"p{at}", "prompt": "".join(rng.choices("the king", k=rng.randint(1, 12)))} for at in range(n)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_killed_three_times_each_prompt_is_answered_once(folder: Path, tmp_path: Path) -> None:
    many_prompts(tmp_path / "in.jsonl", 500)
    call = ["batch", str(tmp_path / "in.jsonl"), "-n", "5", "--seed", "7", "--batch-size", "16", "-o"]
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    subprocess.run(command(*call, str(whole)), env=environment(folder), check=True, timeout=250)
    torn = 0
    for part in (0.1, 0.5, 0.9):
        size = int(part * whole.stat().st_size)
        killed = subprocess.run(
            dying(size, *call, str(out)), env=environment(folder), check=False, capture_output=True, timeout=250
        )
        assert killed.returncode == KILLED, killed.stderr
        assert size - 1000 < out.stat().st_size <= size
        torn += not out.read_bytes().endswith(b"\n")
    assert torn > 0
    subprocess.run(command(*call, str(out)), env=environment(folder), check=True, timeout=250)
    assert [entry["id"] for entry in objects(out.read_text())] == [f"p{at}" for at in range(500)]
    assert out.read_bytes() == whole.read_bytes()


LAUNCH = shutil.which("mlx.launch", path=str(Path(sys.executable).parent))


@pytest.mark.skipif(LAUNCH is None, reason="mlx.launch is not installed")
@pytest.mark.parametrize("verb", ["batch", "score"])
def test_two_ranks_write_what_one_writes(folder: Path, tmp_path: Path, verb: str) -> None:
    if verb == "batch":
        many_prompts(tmp_path / "in.jsonl", 31)
        options = ["--max-tokens", "5", "--seed", "7"]
    else:
        (tmp_path / "in.jsonl").write_text("".join(f'"the king {at}"\n' for at in range(31)))
        options = ["--stride", "9"]
    call = [str(tmp_path / "in.jsonl"), *options, "-o"]
    subprocess.run(command(verb, *call, str(tmp_path / "one.jsonl")), env=environment(folder), check=True)
    launch(tmp_path, folder, command(verb, *call, str(tmp_path / "two.jsonl")))
    assert (tmp_path / "two.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    assert sorted(file.name for file in tmp_path.glob("two*")) == ["two.jsonl"]


@pytest.mark.skipif(LAUNCH is None, reason="mlx.launch is not installed")
def test_a_rank_that_dies_is_told_and_its_lines_are_redone(folder: Path, tmp_path: Path) -> None:
    many_prompts(tmp_path / "in.jsonl", 200)
    call = ["batch", str(tmp_path / "in.jsonl"), "--max-tokens", "5", "--seed", "7", "--batch-size", "2", "-o"]
    out = tmp_path / "out.jsonl"
    told = launch(tmp_path, folder, dying(5000, *call, str(out)))
    assert f"rank 1 exited with code {KILLED}" in told
    assert not out.exists() and 5 <= count(tmp_path / "out.jsonl.rank1") < 100
    # fewer ranks may go on where more were working
    subprocess.run(command(*call, str(out)), env=environment(folder), check=True)
    assert [entry["id"] for entry in objects(out.read_text())] == [f"p{at}" for at in range(200)]
    assert sorted(file.name for file in tmp_path.glob("out*")) == ["out.jsonl"]


def launch(tmp_path: Path, folder: Path, command: list[str]) -> str:
    """Two ring ranks on this machine; returns what was printed."""
    port = str(random.Random(command[-1]).randint(20_000, 50_000))
    call = [str(LAUNCH), "-n", "2", "--backend", "ring", "--starting-port", port, "--", *command]
    with open(tmp_path / "log", "w+") as log, open(os.devnull) as nothing:
        process = subprocess.Popen(call, env=environment(folder), stdin=nothing, stdout=log, stderr=log)
        try:
            process.wait(timeout=120)
        finally:
            process.kill()
        log.seek(0)
        return log.read()
