"""The page of two runs, side by side, in a real headless Chromium."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import mlxgen
from mlxgen.tracing.page import page
from mlxgen.tracing.parting import parting
from mlxgen.tracing.record import Trace

from ..support.browser import CONTRAST, Browser
from ..support.models import letter_tokenizer, tiny_gpt2

PROMPT = "Far away the king and the frog"
LEFT, RIGHT = "", "-2"


@pytest.fixture(scope="module")
def runs(model: mlxgen.Model) -> tuple[Trace, Trace]:
    """Two runs that part in the middle."""
    for seed in range(2, 50):
        first, second = (
            mlxgen.trace(model, PROMPT, 12, seed=one, top_k=2, attention="all", lens=True, ignore_eos=True)
            for one in (1, seed)
        )
        place = parting(first, second)
        if place is not None and place.first is not None and place.first >= 2:
            return first, second
    raise AssertionError("no two seeds part late")


@pytest.fixture
def width() -> int:
    return 1400


def current(browser: Browser) -> list[int]:
    script = "return [...document.querySelectorAll('.tokens [aria-current]')].map(e => Number(e.dataset.step))"
    found: list[int] = browser.js(script)
    return found


def test_it_opens_where_they_part_and_marks_it(opened: Browser, runs: tuple[Trace, Trace]) -> None:
    place = parting(*runs)
    assert place is not None and place.first is not None
    at = place.first
    assert current(opened) == [at, at]
    marked = opened.js("return [...document.querySelectorAll('.token.parts')].map(e => Number(e.dataset.step))")
    assert marked == [at, at]
    said = opened.text("#parting-says")
    assert said.startswith(f"The runs part at step {at + 1}.")
    for name, run, other in (("A", runs[0], runs[1]), ("B", runs[1], runs[0])):
        step, chosen = run.steps[at], other.steps[at].chosen.token
        assert f"{name} chose" in said and f"{100 * step.chosen.probability:.2f}%" in said
        p = next(one.probability for one in step.candidates if one.token == chosen)
        assert f"’s choice had {100 * p:.2f}% here" in said
    opened.click("#next")
    assert current(opened) == [at + 1, at + 1]
    opened.click("#parting-go")
    assert current(opened) == [at, at]


def test_both_are_whole_and_move_together(opened: Browser, runs: tuple[Trace, Trace]) -> None:
    for suffix, run in ((LEFT, runs[0]), (RIGHT, runs[1])):
        assert f"seed {run.seed}" in opened.text(f"#name{suffix}") == opened.text(f"#run-name{suffix}")
    opened.click("#tokens-2 button[data-step='7']")
    assert current(opened) == [7, 7] and opened.text("#where") == "Step 8 of 12"
    opened.keys("\ue010")
    assert current(opened) == [11, 11]
    opened.keys("\ue012")
    assert current(opened) == [10, 10]
    for suffix, run in ((LEFT, runs[0]), (RIGHT, runs[1])):
        chosen = run.steps[10].chosen
        token = opened.js("return document.querySelector(arguments[0]).dataset.token", f"#candidates{suffix} tr.chosen")
        assert token == str(chosen.token)
        assert f"{100 * chosen.probability:.2f}%" in opened.text(f"#figures{suffix}")
        words = opened.text(f"#logits-says{suffix}")
        assert f"{run.steps[10].entropy:.2f} bits" in words
    assert opened.console() == []


def test_the_rules_of_one_run_are_moved_alone(opened: Browser) -> None:
    opened.move("temperature-2", 1.5)
    shown = opened.js("return ['whatif', 'whatif-2'].map(id => document.getElementById(id).hidden)")
    assert shown == [True, False]


def test_no_two_elements_have_one_id_and_every_label_has_its_control(opened: Browser) -> None:
    twice = opened.js(
        "const ids = [...document.querySelectorAll('[id]')].map(e => e.id);"
        "return ids.filter((id, i) => ids.indexOf(id) !== i)"
    )
    assert twice == []
    lost = opened.js(
        "return [...document.querySelectorAll('[for], [aria-labelledby], [aria-controls]')].filter(e =>"
        " ['for', 'aria-labelledby', 'aria-controls'].some(name => e.hasAttribute(name)"
        " && !document.getElementById(e.getAttribute(name)))).map(e => e.outerHTML)"
    )
    assert lost == []


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_a_contrast_of_4_5_to_1(opened: Browser, dark: bool) -> None:
    opened.size(1400, 900, dark)
    assert opened.js(CONTRAST)[1] == []


@pytest.mark.parametrize("width", [1400, 900, 375])
def test_it_fits_the_width(opened: Browser, width: int) -> None:
    opened.size(width, 900)
    assert opened.js("return document.documentElement.scrollWidth <= innerWidth")
    left = opened.js("return ['run', 'run-2'].map(id => document.getElementById(id).getBoundingClientRect().x)")
    assert (left[0] < left[1]) == (width > 375)  # side by side where there is room
    if folder := os.environ.get("MLXGEN_SCREENSHOTS"):
        Path(folder, f"pair-{width}.png").write_bytes(opened.screenshot())


def test_runs_of_other_tokenizers_are_at_the_same_place_of_the_text(
    browser: Browser, model: mlxgen.Model, tmp_path: Path
) -> None:
    letters = tiny_gpt2(3, letter_tokenizer()).model()
    first = mlxgen.trace(model, PROMPT, 6, seed=1, ignore_eos=True)
    second = mlxgen.trace(letters, PROMPT, 9, seed=1, ignore_eos=True)
    place = parting(first, second)
    assert place is not None and place.by == "text"
    browser.show(page(first, second), tmp_path)
    assert current(browser) == [place.first, place.second]
    assert "’s choice had" not in browser.text("#parting-says")
    browser.keys("\ue010")
    assert current(browser) == [5, 8] and browser.text("#where") == "Step 9 of 9"
    assert browser.console() == []


def test_runs_that_do_not_part_say_so(browser: Browser, model: mlxgen.Model, tmp_path: Path) -> None:
    run = mlxgen.trace(model, PROMPT, 3, seed=1)
    browser.show(page(run, run), tmp_path)
    assert "do not part" in browser.text("#parting-says")
    assert browser.js("return document.getElementById('parting-go').hidden")


def test_a_run_without_steps_beside_one_with_steps(browser: Browser, model: mlxgen.Model, tmp_path: Path) -> None:
    short = tiny_gpt2(n_positions=8).model()
    whole = model.tokenizer.encode(PROMPT)[:8]
    runs = mlxgen.trace(short, whole, 3, seed=1), mlxgen.trace(model, whole, 3, seed=1)
    assert not runs[0].steps and runs[1].steps
    browser.show(page(*runs), tmp_path)
    assert "No token was generated" in browser.text("#tokens")
    assert current(browser) == [0] and browser.console() == []


def test_the_data_of_both_is_in_the_page(runs: tuple[Trace, Trace], file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    data = json.loads(text.split('id="trace">')[1].split("</script>")[0])
    assert [[step["chosen"]["token"] for step in run["steps"]] for run in data["runs"]] == [
        [token.id for token in run.tokens] for run in runs
    ]
    assert text.count("<script") == 2
