"""The examples run as they stand, print what the comment at their end says, and answer --help."""

import importlib
import os
import re
import runpy
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import mlx.core as mx
import pytest

from ..conftest import needs_compiler
from ..support.devices import cpu_only
from ..support.models import letter_tokenizer, tiny_gpt2

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
PROGRAMS = sorted({file.name for file in EXAMPLES.glob("*.py")} - {"fairy_tales_recipe.py"})
BUNDLED = files("mlxgen.weights") / "fairy_tales" / "config.json"
TALE = "Once upon a time a fox came to the king, far far away, and said that the moon was made of bread. " * 12


def run(name: str, *arguments: object) -> str:
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # the models are too small to share out
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=one_thread)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return done.stdout


def promised(name: str) -> str:
    """The output in the comment at the end of an example."""
    comment = (EXAMPLES / name).read_text().split("\n# Prints:\n")[1]
    return "".join(re.sub(r"^#( {3})?", "", line) for line in comment.splitlines(keepends=True))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two steps' training, from the training example itself."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "tales.txt").write_text(TALE)
    small = ["--layers", "2", "--width", "64", "--context", "64", "--batch", "1", "--steps", "2"]
    text = ["--train", folder / "tales.txt", "--valid", folder / "tales.txt"]
    run("train_fairy_tales.py", *text, *small, "--out", folder / "model")
    return folder / "model"


def test_output_head_prints_what_it_says():
    assert run("output_head.py") == promised("output_head.py")


def test_decoding_loop_shows_the_cache_one_token_behind(tiny):
    lines = run("decoding_loop.py", tiny).splitlines()
    lengths = [tuple(map(int, m)) for m in re.findall(r"text +(\d+) tokens, cache +(\d+) pos", "\n".join(lines))]
    (n, empty), prefilled, *steps = lengths
    assert (empty, prefilled) == (0, (n, n))
    assert steps[0::2] == [(n + m, n + m - 1) for m in range(1, len(steps[0::2]) + 1)]  # selected
    assert steps[1::2] == [(n + m, n + m) for m in range(1, len(steps[1::2]) + 1)]  # processed
    assert len(steps) % 2 == 1  # the last selected token is not processed


@pytest.mark.skipif(not BUNDLED.is_file(), reason="the bundled model is not here")
@cpu_only("Metal computes in float16, which may choose other tokens")
@pytest.mark.parametrize("name", ["decoding_loop.py", "far_far_away.py"])
def test_with_the_bundled_model_the_output_is_as_promised(name):
    """That of far_far_away includes that transformers' loop chose the same tokens."""
    assert run(name) == promised(name)


@needs_compiler
def test_step_graph_counts_both_sides_and_the_compiled_step_is_smallest():
    """Its times are not tested, only that they are there."""
    line = re.compile(r"^(.+?) +(\d+) primitives +[\d.]+ ms to build +[\d.]+ ms to send$", re.M)
    counts = {name: int(count) for name, count in line.findall(run("step_graph.py", "--runs", "5"))}
    assert {name for name in counts if not name.startswith("choice")} == {"mlxgen, compiled", "mlxgen, plain", "mlx-lm"}
    for rules in ("greedy", "top-k + top-p"):  # one graph serves all rows
        one = counts[f"choice, {rules}, 1 row"]
        assert counts[f"choice, {rules}, 8 rows"] == counts[f"choice, {rules}, 32 rows"] < 1.1 * one
    assert counts["mlxgen, compiled"] <= 0.75 * counts["mlx-lm"]
    assert counts["mlxgen, plain"] <= counts["mlx-lm"]


def test_device_queue_shows_that_the_next_step_is_always_queued(tiny):
    printed = run("device_queue.py", tiny)
    assert len(re.findall(r"the next had been queued for", printed)) == 11
    assert "in 11 of 11 steps" in printed


def test_a_dictated_text_is_the_answer_with_lookahead_and_without(model, monkeypatch):
    """What the speed of lookahead is measured on."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    faster = importlib.import_module("faster")
    prompt, text = [5, 6, 7], [1, 2, 3, 4] * 6
    answers = [faster.dictated(model, prompt, text, lookahead) for lookahead in (True, False)]
    assert [answer.tokens for answer in answers] == [text, text]
    assert answers[0].accepted > answers[1].accepted == 0


def test_memory_stays_and_no_position_past_the_table_is_read(tmp_path):
    folder = tiny_gpt2(tokenizer=letter_tokenizer(), n_embd=256).write(tmp_path / "m")
    printed = run("endless.py", 600, folder)
    assert "Highest position read: 63, of a table of 64" in printed
    *_, (tokens, slides) = re.findall(r"^ *([\d,]+) .* MB +\d+ +(\d+)$", printed, re.M)
    processed = len("Once upon a time") + 600 - 1  # the last one is not
    assert (tokens, int(slides)) == ("600", 1 + (processed - 65) // 32), "at the 65th, and at every 32nd from there"
    change = re.search(r"Peak memory, end against 60 tokens: (\S+) %", printed)
    assert change is not None and abs(float(change[1])) <= 5, "some arrays of a small model may be in flight at a time"


def test_the_mac_check_finds_every_promise_kept():
    """Here it compares the CPU with itself, unless there is a GPU."""
    printed = run("mac_check.py", "--quick")
    assert printed.endswith("Every promise holds.\n") and "FAIL" not in printed
    for part in ("bare layout", "model. layout", "bfloat16", "heads of 80", "rotating", "slide", "4 bits", "8 bits"):
        assert part in printed
    for part in ("training step", "lookahead, greedy", "batch, sampled", "plain step", "with a key", "bans and cuts"):
        assert part in printed


def test_the_mac_check_finds_a_promise_broken(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    check = importlib.import_module("mac_check")
    sizes = {"n_layer": 1, "n_head": 1, "n_positions": 16, "n_embd": 64}
    folder = check.write_model(tmp_path / "m", "model.", sizes)
    table = check.Table(mx.default_device())
    ids = [5, 6, 7, 8]
    table.compare("right", folder, check.whole(ids))
    table.compare("wrong", folder, check.whole(ids), check.whole([5, 6, 7, 9]))
    table.compare(
        "not a number", folder, lambda model: model.decoder(mx.array([ids]))[0] * float("nan"), check.whole(ids)
    )
    table.compare("rounded", folder, check.stepwise(ids), check.second_half(ids), dtype="bfloat16", limit=None)
    table.compare("rounded too much", folder, check.stepwise(ids), check.second_half(ids), dtype="bfloat16")
    table.same("the same", folder, check.answer(ids, seed=1), check.answer(ids, seed=1))
    table.same("another seed", folder, check.answer(ids, seed=1), check.answer(ids, seed=2))
    assert table.failed == ["wrong", "not a number", "rounded too much", "another seed"]
    assert capsys.readouterr().out.count("FAIL") == 4
    monkeypatch.setattr(check, "check_all", lambda table, *_: table.failed.append("one"))
    monkeypatch.setattr(sys, "argv", ["mac_check.py"])
    assert check.main() == 1 and "Broken: one" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "status"), [(["--help"], 0), (["--nonsense"], 2)], ids=["help", "nonsense"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_answers_help_refuses_unknown_options_and_leaves_nothing(
    name, arguments, status, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert ended.value.code == status
    printed = capsys.readouterr()
    assert (printed.out if status == 0 else printed.err).startswith(f"usage: {name}")
    assert list(tmp_path.iterdir()) == []
