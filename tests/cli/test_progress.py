"""The progress bar: one line of any terminal, gone at the end, and nowhere but on a terminal."""

import subprocess
import sys
from pathlib import Path

import pytest

from ..support.models import tiny_gpt2
from .running import Screen, on_terminal, one_line

# `mlxgen score` on a file, with a model that shows some progress and then ends in the way that is asked for.
SCORE = """
import sys, mlxgen
from mlxgen.cli.main import main

def score(*_, progress, **__):
    if progress:
        progress(10, 5000)
    if sys.argv[1] == "error":
        raise RuntimeError("broken")
    raise KeyboardInterrupt

mlxgen.load = lambda *_, **__: None
mlxgen.score = score
main(["score", *sys.argv[2:]], prog_name="mlxgen")
"""

# A bar on its own, for one piece of work after another.
BAR = """
from mlxgen.cli.progress import prefill_bar
bar = prefill_bar(quiet=False)
for total in (100, 1000, 2000):
    for done in (total // 2, total):
        bar(done, total)
    print(total, "done", flush=True)
"""

NOTES = """
import sys
from mlxgen.cli.progress import progress_bar
bar = progress_bar("Converting", quiet=False)
for tensor in range(1, 6):
    bar(tensor, 10, "model.transformer.h.11.attn.c_attn.[b]weight[/b] of a name " + 8 * "that never ends ")
    if tensor == 3:
        bar.say("Warning: [b]" + 20 * "a long warning ")
"""


def frames(output: str) -> list[str]:
    """What was drawn over each other, one after another."""
    return [line for line in output.replace("\r\x1b[2K", "\n").split("\n") if "━" in line]


def test_only_long_work_has_a_bar_and_the_answer_takes_its_place() -> None:
    code, output = on_terminal("-c", BAR)
    assert code == 0
    shown = frames(output)
    assert "500/1000" in shown[0] and "1000/2000" in shown[-2]
    assert all("Reading the prompt" in frame for frame in shown) and not any("/100 " in frame for frame in shown)
    screen = Screen(output)
    assert screen.lines == ["100 done", "1000 done", "2000 done"] and screen.cursor_visible


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_it_is_one_line_at_any_width_and_notes_stay_above_it(columns: int) -> None:
    code, output = on_terminal("-c", NOTES, columns=columns)
    assert code == 0
    screen = Screen(output, columns)
    assert " ".join(screen.rows).startswith("Warning: [b]a long warning a long warning")
    assert sum("Conve" in line for line in screen.lines) == 1, "drawn once: every frame replaced the one before"


def test_the_echoed_prompt_is_whole_after_its_bar(tmp_path: Path) -> None:
    model = tiny_gpt2(n_positions=2048).write(tmp_path / "model")
    prompt = "Far far away, " * 100 + "the end"
    options = ("--greedy", "-n", "1", "--no-stats")
    code, output = on_terminal("-m", "mlxgen", "generate", prompt, "-m", str(model), *options)
    assert code == 0 and any("Reading the prompt" in frame for frame in frames(output))
    left = "".join(Screen(output).rows)
    assert left.startswith(prompt) and "Reading" not in left and "━" not in left


def test_a_conversion_leaves_its_summary_alone_on_the_screen(folder: str, tmp_path: Path) -> None:
    options = ("-q", "8", "--group-size", "32", "-o", str(tmp_path / "out"))
    code, output = on_terminal("-m", "mlxgen", "convert", folder, *options)
    assert code == 0
    assert any("Converting" in frame for frame in frames(output))
    screen = Screen(output)
    starts = ["source", "folder", "parameters", "weights", "cache", "tokenizer", "mlx-lm", "next"]
    assert [line.split()[0] for line in screen.lines if line.split()[0] in starts] == starts
    assert not any("Converting" in line for line in screen.lines) and screen.cursor_visible


@pytest.mark.parametrize(("how", "status"), [("error", 1), ("interrupt", 130)])
def test_the_cursor_is_back_and_the_bar_gone_however_the_work_ends(tmp_path: Path, how: str, status: int) -> None:
    (tmp_path / "text").write_text("a text")
    code, output = on_terminal("-c", SCORE, how, str(tmp_path / "text"))
    assert code == status and "10/5000" in output and "\x1b[?25l" in output
    screen = Screen(output)
    assert screen.cursor_visible
    assert screen.lines == ([] if how == "interrupt" else ["Error: RuntimeError: broken (MLXGEN_DEBUG=1 shows where)"])


def test_nothing_is_drawn_under_quiet_or_off_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a text")
    code, output = on_terminal("-c", SCORE, "error", str(tmp_path / "text"), "-q")
    assert code == 1 and one_line(output)
    piped = subprocess.run(
        [sys.executable, "-c", SCORE, "error", str(tmp_path / "text")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert piped.returncode == 1 and one_line(piped.stderr)
