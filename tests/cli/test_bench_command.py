"""Both sides of a measurement do the same work on the same weights."""

import errno
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
from click.testing import CliRunner, Result

from mlxgen.cli.bench.bandwidth import bytes_per_step
from mlxgen.cli.bench.measure import Measurement, compare_decodes, measure
from mlxgen.cli.bench.plot import check_plot, draw_plot
from mlxgen.cli.bench.random_model import random_folder
from mlxgen.cli.bench.sides import SIDES
from mlxgen.cli.bench.speed import curve, medians_of, ratio, tps_at
from mlxgen.cli.commands.bench import bench
from mlxgen.cli.main import main
from mlxgen.errors import MlxgenError, OptionError

from ..support.models import letter_tokenizer, tiny_gpt2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"vocab_size": 300, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return random_folder(tmp_path_factory.mktemp("random"), **sizes)


@pytest.mark.parametrize("peer", ["mlx-lm", "transformers", "ctranslate2"])
def test_a_peer_chooses_the_same_tokens_from_the_same_weights(folder: Path, peer: str) -> None:
    if SIDES[peer].missing:
        pytest.skip(f"needs {SIDES[peer].missing}")
    prompt = [5, 17, 255, 3]
    ours = list(SIDES["mlxgen"].open(folder)(prompt, 20))
    assert len(ours) == 20
    assert list(SIDES[peer].open(folder)(prompt, 20)) == ours


def test_a_run_in_its_own_process_gives_every_number(folder: Path) -> None:
    m = measure("mlxgen", folder, prompt_tokens=8, new_tokens=4)
    assert (m.side, m.prompt_tokens, m.new_tokens) == ("mlxgen", 8, 4)
    assert min(m.load, m.first_token, m.prefill_tps, m.decode_tps, m.memory) > 0
    assert medians_of([m])["mlxgen"]["decode_tps"] == m.decode_tps
    assert len(m.seconds) == 4 and m.seconds[0] == m.first_token
    assert sum(m.seconds[1:]) == pytest.approx(3 / m.decode_tps)


def test_a_side_that_fails_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(MlxgenError, match="mlxgen could not be measured"):
        measure("mlxgen", tmp_path, prompt_tokens=8, new_tokens=4)


def test_bytes_per_step_count_each_weight_once_and_the_cache(folder: Path) -> None:
    block = 12 * 32 * 32 + 13 * 32
    weights = 300 * 32 + 2 * block + 2 * 32
    cache = 10 * 2 * 2 * 32
    assert bytes_per_step(folder, 10) == 4 * (weights + cache)


def test_the_command_prints_one_object_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # nobody needs it who has not asked for --plot
    done = CliRunner().invoke(bench, ["-m", str(folder), "-n", "4", "--prompt-tokens", "8", "--runs", "2", "--json"])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["side"] for line in lines] == ["mlxgen", "mlxgen"]
    assert set(lines[0]) == {
        *("side", "batch_size", "prompt_tokens", "new_tokens", "load", "first_token", "prefill_tps", "decode_tps"),
        "memory",
    }


def test_a_batch_is_answered_as_each_sides_users_would(folder: Path, tmp_path: Path) -> None:
    letters = copytree(folder, tmp_path / "letters")
    letter_tokenizer().save(str(letters / "tokenizer.json"))  # one that does not have more tokens than the model
    options = ["--batch-size", "3", "-n", "4", "--prompt-tokens", "8", "--runs", "1"]
    done = CliRunner().invoke(bench, ["-m", str(letters), *options, "--json"])
    assert done.exit_code == 0, done.output
    (line,) = (json.loads(line) for line in done.stdout.splitlines())
    assert (line["side"], line["batch_size"], line["prompt_tokens"], line["new_tokens"]) == ("mlxgen", 3, 8, 4)
    assert set(line) == {
        *("side", "batch_size", "prompt_tokens", "new_tokens", "tokens_per_second", "decode_tps", "memory")
    }
    done = CliRunner().invoke(bench, ["-m", str(letters), *options, "--against", "mlx-lm"])
    assert done.exit_code == 0, done.output
    assert re.search(r"^mlx-lm +[\d.]+ t/s +[\d.]+ t/s", done.stdout, re.MULTILINE)
    assert "mlxgen / mlx-lm: prompts and decode" in done.stdout


def test_medians_are_each_sides_own() -> None:
    runs = [a_run([0.1, duration], side) for side in ("mlxgen", "mlx-lm") for duration in (0.1, 0.2, 0.9)]
    runs[4] = replace(runs[4], memory=7)
    assert medians_of(runs)["mlxgen"]["memory"] == medians_of(runs)["mlx-lm"]["memory"] == 1


def a_run(seconds: Sequence[float], side: str = "mlxgen", prompt: int = 8) -> Measurement:
    return Measurement(side, prompt, len(seconds), 0.1, seconds[0], 1.0, 1.0, 1, list(seconds))


def test_speed_at_a_context_is_that_of_the_tokens_around_it() -> None:
    seconds = [9.0, *((8 + k) / 1000 for k in range(1, 1016))]  # a token takes a millisecond for each before it
    run = a_run(seconds)
    assert tps_at(run, 100) == pytest.approx(10)
    assert ratio(run) == pytest.approx(100 / 1000)
    assert ratio(run, 400, against=200) == pytest.approx(200 / 400)
    slow = list(seconds)
    slow[100 - 8] = 60.0  # the machine was busy with something else
    assert tps_at(a_run(slow), 100) == pytest.approx(10, rel=0.02)
    assert tps_at(a_run([9.0, 0.01]), 9) == pytest.approx(100), "the prompt's time is no token's"
    assert tps_at(run, 1023) > 0
    for outside in (8, 1024):
        with pytest.raises(OptionError, match="9 to 1023"):
            tps_at(run, outside)


def test_a_curve_is_the_median_of_its_runs() -> None:
    runs = [a_run([1.0] + [duration] * 99) for duration in (0.1, 0.2, 0.9)]
    assert curve(runs) == [(context, pytest.approx(5)) for context in (9, 41, 73, 105)]


def test_a_series_goes_through_the_whole_context(folder: Path) -> None:
    points = curve(list(compare_decodes(["mlxgen"], folder, runs=1)))
    assert [context for context, _ in points] == [9, 41]
    assert all(tps > 0 for _, tps in points)


def test_sides_decode_the_context_in_turn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(side: str, folder: Path, *, prompt_tokens: int, new_tokens: int, **others: object) -> Measurement:
        assert prompt_tokens + new_tokens == 64 and others == {"dtype": None}
        return a_run([0.1] * new_tokens, side, prompt_tokens)

    monkeypatch.setattr("mlxgen.cli.bench.measure.measure", fake)
    assert [run.side for run in compare_decodes(["mlxgen", "mlx-lm"], folder, runs=2)] == ["mlxgen", "mlx-lm"] * 2


def test_a_context_too_short_for_a_decode_is_told(tmp_path: Path) -> None:
    tiny = random_folder(tmp_path, vocab_size=30, n_positions=9, n_embd=8, n_layer=1, n_head=1)
    with pytest.raises(OptionError, match="10 positions"):
        compare_decodes(["mlxgen"], tiny)


def points(svg: str, side: str) -> list[tuple[float, float]]:
    """The corners of one side's curve, in the picture's coordinates: y goes down."""
    found = re.search(rf'<g id="{side}">\s*<path d="([^"]*)"', svg)
    assert found, f"{side} has no curve"
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", found[1])]


def test_the_plot_has_a_curve_a_side(tmp_path: Path) -> None:
    fast, slow = [(9, 80.0), (41, 40.0), (73, 40.0)], [(9, 20.0), (41, 20.0)]
    draw_plot(tmp_path / "speed.svg", "a $model$", {"mlxgen": fast, "mlx-lm": slow})
    svg = (tmp_path / "speed.svg").read_text()
    for text in (">a $model$<", "context (tokens)", "tokens per second", ">mlxgen<", ">mlx-lm<"):
        assert text in svg
    (_, a), (_, b), (_, c) = points(svg, "mlxgen")
    (_, d), _ = points(svg, "mlx-lm")
    assert b == c
    assert (b - a) == pytest.approx(2 * (d - b), abs=1e-3), "40 more is twice as far as 20 more"
    ground = d + (d - b)  # where 0 is
    frame = re.search(r'<g id="patch_2">\s*<path d="M \S+ (\S+)', svg)
    assert frame and float(frame[1]) == pytest.approx(ground, abs=1e-3), "y starts from 0"


@pytest.mark.parametrize(("name", "magic"), [("a.png", b"\x89PNG\r\n"), ("a.PDF", b"%PDF-"), ("a.svg", b"<?xml")])
def test_the_format_follows_the_ending(tmp_path: Path, name: str, magic: bytes) -> None:
    check_plot(tmp_path / name)
    assert not list(tmp_path.iterdir()), "nothing is left of the trial"
    draw_plot(tmp_path / name, "model", {"mlxgen": [(9, 80.0)]})
    assert (tmp_path / name).read_bytes().startswith(magic)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_plot_takes_the_old_ones_place_as_a_whole(tmp_path: Path) -> None:
    file, other = tmp_path / "a.png", tmp_path / "b.png"
    file.write_text("old")
    other.hardlink_to(file)
    draw_plot(file, "model", {"mlxgen": [(9, 80.0)]})
    assert other.read_text() == "old" and file.read_bytes().startswith(b"\x89PNG")


def test_a_plot_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(figure: object, out: object, **_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "a.png").write_text("old")
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    with pytest.raises(OSError, match=r"No space left on device: .*a\.png"):
        draw_plot(tmp_path / "a.png", "model", {"mlxgen": [(9, 80.0)]})
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.png", "old")]


def test_the_command_measures_and_draws_every_side(tmp_path: Path) -> None:
    folder, file = tiny_gpt2().write(tmp_path / "small-model"), tmp_path / "speed.svg"
    options = ["--prompt-tokens", "8", "-n", "4", "--runs", "1", "--against", "mlx-lm", "--json", "--plot", str(file)]
    done = CliRunner().invoke(bench, ["-m", str(folder), *options])
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["new_tokens"] for line in done.stdout.splitlines()] == [4, 4], "nothing but the runs asked"
    svg = file.read_text()
    assert ">small-model<" in svg
    assert len(points(svg, "mlxgen")) == len(points(svg, "mlx-lm")) == 2
    assert done.stderr == ""  # not a terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_for_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    run = Measurement("mlxgen", 8, 4, 0.1, 0.1, 80.0, 20.0, 1000, [0.1] * 4)
    monkeypatch.setattr("mlxgen.cli.output.stderr_is_terminal", lambda: terminal)
    monkeypatch.setattr("mlxgen.cli.bench.bandwidth.memory_bandwidth", lambda: 1e9)
    monkeypatch.setattr("mlxgen.cli.bench.measure.compare", lambda *_, **__: [run])
    folder = tiny_gpt2().write(tmp_path / "small-model")
    done = CliRunner().invoke(bench, ["-m", str(folder), "--prompt-tokens", "8", "-n", "4", "--runs", "1"])
    assert done.exit_code == 0 and done.stderr == ("mlxgen 1/1\n" if terminal else "")


def refused(file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The line that refuses a plot, nothing having been measured."""

    def work(*_: object, **__: object) -> None:
        raise AssertionError("measured before the refusal")

    for name in ("bandwidth.memory_bandwidth", "measure.measure"):
        monkeypatch.setattr(f"mlxgen.cli.bench.{name}", work)
    done: Result = CliRunner().invoke(main, ["bench", "-m", str(folder), "--plot", str(file)])
    assert done.exit_code == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("name", ["speed", "speed.jpg", "speed.png.txt", ".png"])
def test_an_ending_it_does_not_know_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    line = refused(tmp_path / name, folder, monkeypatch)
    assert name in line and ".png, .svg, .pdf" in line


def test_a_missing_matplotlib_is_told_with_the_way_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    line = refused(tmp_path / "speed.png", folder, monkeypatch)
    assert "matplotlib" in line and "install matplotlib" in line


@pytest.mark.parametrize("place", ["missing/speed.png", "file/speed.png", "x" * 300 + ".png"])
def test_a_place_that_cannot_be_written_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").write_text("not a folder")
    line = refused(tmp_path / place, folder, monkeypatch)
    assert "cannot be written" in line
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_run_that_does_not_fit_and_a_peer_that_is_not_there_are_told_before_anything_is_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxgen.cli.bench.bandwidth.memory_bandwidth", lambda: pytest.fail("measured"))
    long = CliRunner().invoke(bench, ["-m", str(folder), "--prompt-tokens", "60", "-n", "10"])
    assert "more than the model's 64 positions" in str(long.exception)
    monkeypatch.setattr("mlxgen.cli.bench.sides.find_spec", lambda name: None)
    missing = CliRunner().invoke(bench, ["-m", str(folder), "--against", "transformers"])
    assert "install torch transformers" in str(missing.exception)


def test_the_memory_is_that_of_the_side_and_not_of_who_started_it(folder: Path) -> None:
    large = bytearray(600 * 1024 * 1024)
    large[::4096] = b"1" * len(large[::4096])
    assert measure("mlxgen", folder, prompt_tokens=8, new_tokens=2).memory < 500 * 1024 * 1024


@pytest.mark.parametrize(("bandwidth", "shown"), [(1e9, True), (1.0, False)])
def test_no_share_of_the_memorys_bandwidth_is_above_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bandwidth: float, shown: bool
) -> None:
    run = Measurement("mlxgen", 8, 4, 0.1, 0.1, 80.0, 20.0, 1000, [0.1] * 4)
    monkeypatch.setattr("mlxgen.cli.bench.bandwidth.memory_bandwidth", lambda: bandwidth)
    monkeypatch.setattr("mlxgen.cli.bench.measure.compare", lambda *_, **__: [run])
    folder = tiny_gpt2().write(tmp_path / "small-model")
    done = CliRunner().invoke(bench, ["-m", str(folder), "--prompt-tokens", "8", "-n", "4", "--runs", "1"])
    row = next(line for line in done.stdout.splitlines() if line.startswith("mlxgen"))
    share = bytes_per_step(folder, 8 + 2) * 20.0 / bandwidth
    assert row.endswith(f"{share:.0%}" if shown else "in cache")
    assert ("the CPU's cache" in done.stdout) is not shown
