"""The page's grid of attention heads, in a real headless Chromium."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import mlxgen
from mlxgen.tracing.page import page
from mlxgen.tracing.record import Trace

from ..support.browser import CONTRAST, Browser
from ..support.models import tiny_gpt2

PROMPT = "Far away the king and the frog"
N_LAYER = N_HEAD = 12


@pytest.fixture(scope="module")
def trace() -> Trace:
    model = tiny_gpt2(n_layer=N_LAYER, n_head=N_HEAD, n_embd=24).model()
    return mlxgen.trace(model, PROMPT, 40, seed=3, attention="all", ignore_eos=True, candidates=40)


def place(browser: Browser, layer: int, head: int) -> list[float]:
    """The middle of a head's cell, in the window."""
    script = """
        const box = document.querySelector('canvas.heads').getBoundingClientRect();
        const [rows, columns, layer, head] = arguments;
        const [wide, tall] = [(box.width - 18) / columns, (box.height - 18) / rows];
        return [box.x + 18 + (head + 0.45) * wide, box.y + 18 + (layer + 0.4) * tall];
    """
    found: list[float] = browser.js(script, N_LAYER, N_HEAD, layer, head)
    return found


def mouse(browser: Browser, kind: str, layer: int, head: int) -> None:
    script = (
        "const [kind, x, y] = arguments; document.querySelector('canvas.heads')"
        ".dispatchEvent(new MouseEvent(kind, { clientX: x, clientY: y, bubbles: true }))"
    )
    browser.js(script, kind, *place(browser, layer, head))


def test_every_head_is_recorded_in_order(trace: Trace) -> None:
    heads = [(layer, head) for layer in range(N_LAYER) for head in range(N_HEAD)]
    for step in trace.steps:
        assert [(one.layer, one.head) for one in step.attention] == heads
        assert all(sum(one.weights) == pytest.approx(1, abs=1e-4) for one in step.attention)


def test_the_page_stays_small(trace: Trace, file: Path) -> None:
    weights = sum(len(one.weights) for step in trace.steps for one in step.attention)
    assert weights > 100_000
    assert file.stat().st_size < 200_000 + 4 * weights


def test_a_click_shows_a_heads_tokens(opened: Browser, trace: Trace) -> None:
    opened.click("#tokens button[data-step='6']")
    step = trace.steps[6]
    for layer, head in ((0, 0), (11, 11), (3, 8)):
        mouse(opened, "click", layer, head)
        assert opened.js("return document.getElementById('head').selectedOptions[0].textContent") == (
            f"layer {layer}, head {head}"
        )
        weights = step.attention[layer * N_HEAD + head].weights
        chips = opened.js("return [...document.querySelectorAll('#attention .chip small')].map(e => e.textContent)")
        assert [float(chip.rstrip("%")) for chip in chips] == pytest.approx([100 * w for w in weights], abs=0.11)
    opened.click("#next")  # the head stays chosen
    assert opened.js("return document.getElementById('head').value") == str(3 * N_HEAD + 8)


def test_the_list_of_heads_marks_the_same_one(opened: Browser) -> None:
    before = opened.js("return document.querySelector('canvas.heads').toDataURL()")
    script = "const h = document.getElementById('head'); h.value = 50; h.dispatchEvent(new Event('change'))"
    opened.js(script)
    assert opened.js("return document.querySelector('canvas.heads').toDataURL()") != before
    assert opened.js("return document.activeElement.id") == "head"


def test_a_bar_is_as_tall_as_the_root_of_its_weight(opened: Browser, trace: Trace) -> None:
    """In a cell, wider than there are tokens: the painted part of each token's column."""
    step, (layer, head) = trace.steps[0], (5, 2)
    tall: list[Any] = opened.js(
        """
        const [rows, columns, layer, head, n] = arguments;
        const canvas = document.querySelector('canvas.heads');
        const [wide, tall] = [(canvas.width - 18) / columns, (canvas.height - 18) / rows];
        const [x, y] = [18 + head * wide, 18 + layer * tall];
        const paint = canvas.getContext('2d');
        const empty = paint.getImageData(Math.floor(x + wide - 5), Math.floor(y + 1), 1, 1).data;
        const found = [];
        for (let bar = 0; bar < n; bar++) {
          const column = Math.floor(x + ((bar + 0.5) * (wide - 3)) / n);
          const pixels = paint.getImageData(column, Math.round(y), 1, Math.round(tall - 3)).data;
          let filled = 0;
          for (let i = 0; i < pixels.length; i += 4) filled += pixels[i] < 130;
          found.push(filled / (tall - 3));
        }
        return found;
        """,
        N_LAYER,
        N_HEAD,
        layer,
        head,
        len(step.attention[0].weights),
    )
    weights = step.attention[layer * N_HEAD + head].weights
    assert tall == pytest.approx([w**0.5 for w in weights], abs=0.1)


def test_it_is_drawn_for_each_step_in_each_width_and_in_the_dark(opened: Browser) -> None:
    opened.console()  # of other tests, which read the canvas back
    drawn = "return document.querySelector('canvas.heads').toDataURL()"
    seen = {opened.js(drawn)}
    opened.click("#next")
    seen.add(opened.js(drawn))
    opened.click("#theme")
    seen.add(opened.js(drawn))
    for width in (700, 375):
        opened.size(width, 800)
        opened.js("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert opened.js("return document.documentElement.scrollWidth <= innerWidth")
        seen.add(opened.js(drawn))
    assert len(seen) == 5
    mouse(opened, "click", 2, 7)
    assert opened.js("return document.getElementById('head').value") == str(2 * N_HEAD + 7)
    assert opened.console() == []
    if folder := os.environ.get("MLXGEN_SCREENSHOTS"):
        opened.size(1280, 900)
        Path(folder, "heads.png").write_bytes(opened.screenshot())


def test_the_pointer_is_told_what_a_head_attends_to_most(opened: Browser, trace: Trace) -> None:
    mouse(opened, "mousemove", 4, 4)
    head = trace.steps[0].attention[4 * N_HEAD + 4]
    told = opened.js("return document.querySelector('canvas.heads').title")
    assert told.startswith("layer 4, head 4: most on ") and f"{100 * max(head.weights):.1f}%" in told


def test_some_heads_are_no_grid(browser: Browser, model: mlxgen.Model, tmp_path: Path) -> None:
    browser.show(page(mlxgen.trace(model, PROMPT, 2, seed=1, attention=[(0, 0), (1, 1)])), tmp_path)
    assert browser.js("return document.querySelectorAll('#attention canvas').length") == 0
    assert browser.js("return document.getElementById('head').length") == 2


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_a_contrast_of_4_5_to_1(opened: Browser, dark: bool) -> None:
    opened.size(1280, 900, dark)
    assert opened.js(CONTRAST)[1] == []


def test_a_dropped_token_has_no_bar(browser: Browser, model: mlxgen.Model, tmp_path: Path) -> None:
    trace = mlxgen.trace(model, PROMPT, 6, seed=1, attention="all", max_kv_size=9, keep=2, ignore_eos=True)
    browser.show(page(trace), tmp_path)
    browser.click("#tokens button[data-step='5']")
    assert browser.js("return document.querySelectorAll('#attention .chip').length") == 9
    assert browser.console() == []
