"""The page of a trace: its size and safety, and in a real headless Chromium its steps, keys and what-if numbers."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import mlxgen  # first, so that its BLAS is loaded before anything imports MLX  # isort: skip
import mlx.core as mx
import numpy as np
import pytest

from mlxgen.sampling.samplers import Sampling, apply_rules, apply_temperature
from mlxgen.text.tokenizer import load_tokenizer
from mlxgen.tracing.page import page, page_data
from mlxgen.tracing.record import Trace

from ..support.browser import CONTRAST, Browser
from ..support.models import tiny_gpt2
from ..support.vocabularies import gpt2_folder

PROMPT = "Far away the king and the frog"
HOSTILE = "</script><script>alert(1)</script> <!-- \" ' & ${x} \\u003c שלום عالم 👩‍🚀 \u202e\u2028 \x00 €"


@pytest.fixture(scope="module")
def big_model(tmp_path_factory: pytest.TempPathFactory) -> mlxgen.Model:
    """A tiny random network over GPT-2's real vocabulary of 50,257 tokens."""
    tokenizer = load_tokenizer(gpt2_folder(tmp_path_factory.mktemp("gpt2")))
    sizes = {"vocab_size": 50257, "n_positions": 128, "n_embd": 16, "n_head": 2, "eos_token_id": 50256}
    return replace(tiny_gpt2(1, **sizes).model(), name="random", tokenizer=tokenizer)


@pytest.fixture(scope="module")
def trace(big_model: mlxgen.Model) -> Trace:
    heads = [(0, 0), (1, 1)]
    return mlxgen.trace(big_model, PROMPT, 40, seed=3, top_p=0.9, lens=True, attention=heads, ignore_eos=True)


# --- the file


class References(HTMLParser):
    """Collects every attribute that could make a browser load something."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href", "srcset", "action")]


def test_the_page_is_one_file_under_400_kb_for_40_steps(trace: Trace, file: Path) -> None:
    assert len(trace.steps) == 40
    assert file.stat().st_size < 400_000
    references = References()
    references.feed(file.read_text(encoding="utf-8"))
    assert references.found == ["link href=data:,"]
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", file.read_text(encoding="utf-8"))


def test_a_hostile_prompt_is_data_and_comes_back_whole(model: mlxgen.Model) -> None:
    record = mlxgen.trace(model, HOSTILE, 2, seed=1, overflow="slide")
    text = page(record)
    assert text.count("<script") == 2 and text.count("</script>") == 2 and "<!--" not in text
    data = json.loads(text.split('id="trace">')[1].split("</script>")[0])
    assert [data["pieces"][str(token)] for token in data["prompt"]] == [token.text for token in record.prompt_tokens]
    title = text.split("<title>")[1].split("</title>")[0]
    assert "<" not in title and "&lt;/script&gt;" in title


def test_the_pages_numbers_are_the_records(trace: Trace) -> None:
    data = page_data(trace)
    for step, told in zip(trace.steps, data["steps"], strict=True):
        assert told["ids"] == [one.token for one in step.candidates]
        assert told["chosen"]["token"] == step.chosen.token and told["random"] == step.random
        p = np.exp(np.array(told["logits"]) - told["log_total"])
        assert p == pytest.approx([one.probability for one in step.candidates], abs=1e-4)


# --- in the browser


def test_it_steps_by_button_slider_key_and_token(opened: Browser, trace: Trace) -> None:
    def where() -> str:
        return opened.text("#where")

    assert where() == "Step 1 of 40"
    opened.click("#next")
    assert where() == "Step 2 of 40"
    left, right, end, home = "\ue012", "\ue014", "\ue010", "\ue011"
    opened.keys(right, right, left, right)
    assert where() == "Step 4 of 40"
    opened.keys(end)
    assert where() == "Step 40 of 40" and opened.js("return document.getElementById('next').disabled")
    opened.keys(home)
    assert where() == "Step 1 of 40" and opened.js("return document.getElementById('back').disabled")
    opened.js("document.getElementById('slider').focus()")
    opened.keys(right, right)
    assert where() == "Step 3 of 40"
    opened.click("#tokens button[data-step='17']")
    assert where() == "Step 18 of 40"
    assert opened.js("return document.querySelector('#tokens [aria-current]').dataset.step") == "17"
    assert opened.js("return document.getElementById('slider').value") == "18"
    opened.click("#back")
    assert where() == "Step 17 of 40"
    chosen = trace.steps[16].chosen
    assert opened.js("return document.querySelector('#candidates tr.chosen').dataset.token") == str(chosen.token)
    assert f"{100 * chosen.probability:.2f}%" in opened.text("#figures") or chosen.probability < 5e-5
    said = re.search(r"([\d.]+) bits \(perplexity ([\d.,]+)\)", opened.text("#logits-says"))
    assert said and float(said[1]) == pytest.approx(trace.steps[16].entropy, abs=0.006)
    assert float(said[2].replace(",", "")) == pytest.approx(2 ** trace.steps[16].entropy, rel=0.06)


def test_it_plays_by_itself_until_it_is_paused(opened: Browser) -> None:
    opened.click("#play")
    assert opened.text("#play") == "Pause"
    end = time.monotonic() + 30
    while opened.text("#where") == "Step 1 of 40":
        assert time.monotonic() < end
        time.sleep(0.1)
    opened.click("#play")
    assert opened.text("#play") == "Play"
    opened.click("#tokens button[data-step='38']")
    opened.click("#play")
    while opened.text("#where") != "Step 40 of 40":
        assert time.monotonic() < end
        time.sleep(0.1)
    assert opened.text("#play") == "Play"


def test_hovering_a_candidate_shows_its_numbers(opened: Browser, trace: Trace) -> None:
    opened.hover("#candidates tbody tr:nth-child(5)")
    one = trace.steps[0].candidates[4]
    assert f"id {one.token}: logit {one.logit:.3f}; number 5 of 50,257" in opened.text("#detail").replace("−", "-")


def test_few_candidates_are_told_as_what_they_are(browser: Browser, big_model: mlxgen.Model, tmp_path: Path) -> None:
    record = mlxgen.trace(big_model, PROMPT, 4, seed=3, candidates=10, temperature=1.5, top_k=None, ignore_eos=True)
    step = record.steps[-1]
    assert step.chosen.rank > 11 and len(step.candidates) == 11
    browser.show(page(record), tmp_path)
    browser.click(f"#tokens button[data-step='{step.index}']")
    assert f"rank {step.chosen.rank:,} of 50,257" in browser.text("#detail")
    assert browser.js("return document.getElementById('top-k').max") == "11"
    for value, said in ((11, "off"), (10, "10")):
        browser.move("top-k", value)
        assert browser.text("#top-k + output") == said
    told = browser.js("return document.querySelector('#rules [data-rule=top_k]').dataset.kept")
    assert told == "10"


def test_light_and_dark_follow_the_system_until_the_button_changes_them(opened: Browser) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    light = opened.js(paper)
    opened.size(1280, 900, dark=True)
    dark = opened.js(paper)
    assert light != dark
    opened.click("#theme")
    assert opened.js(paper) == light


def test_everything_works_from_the_keyboard_alone(opened: Browser) -> None:
    tab, down, space = "\ue004", "\ue015", " "
    seen = []
    for _ in range(75):
        opened.keys(tab)
        seen.append(
            opened.js("const a = document.activeElement; return a.id || a.dataset.step || a.dataset.token || a.tagName")
        )
    for name in ("theme", "0", "39", "play", "next", "slider", "head", "temperature", "top-k", "top-p", "more"):
        assert name in seen, f"{name} cannot be reached with Tab"
    opened.js("document.querySelector('#candidates tbody tr').focus()")
    first = opened.text("#detail")
    opened.keys(down)
    assert opened.text("#detail") != first
    opened.js("document.getElementById('next').focus()")
    opened.keys(space)
    assert opened.text("#where") == "Step 2 of 40"


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(None, None, None), (0.5, 40, 0.9), (1.0, 201, 1), (1.0, 5, 1), (2.0, 200, 0.5), (1.5, 17, 0.97), (0.3, 201, 0.8)],
)
def test_what_if_gives_what_the_samplers_give(
    opened: Browser,
    big_model: mlxgen.Model,
    trace: Trace,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
) -> None:
    if temperature is not None:
        for name, value in (("temperature", temperature), ("top-k", top_k), ("top-p", top_p)):
            opened.move(name, value)
    assert opened.js("return document.getElementById('whatif').hidden") == (temperature is None)
    asked = Sampling(
        temperature=temperature or trace.options["temperature"],
        top_k=(top_k or trace.options["top_k"]) if top_k != 201 else None,
        top_p=(top_p or trace.options["top_p"]) if top_p != 1 else None,
    )
    opened.click("#more")
    ids = [token.id for token in [*trace.prompt_tokens, *trace.tokens]]
    everything = big_model.decoder(mx.array([ids]))[0]
    for index in (0, 7, 39):
        opened.click(f"#tokens button[data-step='{index}']")
        logits = everything[trace.steps[index].context_length - 1][None]
        final = np.array(mx.softmax(apply_rules(logits, asked), axis=-1))[0]
        tempered = np.array(mx.softmax(apply_temperature(logits, asked.temperature), axis=-1))[0]
        rows = opened.js(
            "return [...document.querySelectorAll('#candidates tbody tr')].map(r => r.dataset)"
            ".map(row => [row.token, row.p, row.tempered])"
        )
        assert len(rows) == len(trace.steps[index].candidates)
        for token, p, before in rows:
            assert float(p) == pytest.approx(final[int(token)], abs=1e-3)
            assert float(before) == pytest.approx(tempered[int(token)], abs=1e-3)
        cut = [(int(token), float(p)) for token, p, _ in rows]
        assert sum((p > 0) != (final[token] > 0) for token, p in cut) <= 1  # a tie within rounding may fall either way
        if asked.top_p:
            told = opened.js("return document.querySelector('#rules [data-rule=top_p]').dataset")
            assert int(told["kept"]) == pytest.approx((final > 0).sum(), rel=0.02, abs=1)


def test_what_if_draws_with_the_same_random_number_and_reset_brings_back_the_run(opened: Browser, trace: Trace) -> None:
    step = next(step for step in trace.steps if step.chosen.rank > 1)
    opened.click(f"#tokens button[data-step='{step.index}']")
    opened.move("top-k", 1)
    assert opened.js("return document.getElementById('outcome').dataset.token") == str(step.candidates[0].token)
    opened.click("#reset")
    assert opened.js("return document.getElementById('outcome').dataset.token") == str(step.chosen.token)
    told = opened.js(
        "return [...document.querySelectorAll('#rules [data-kept]')].map(r => r.dataset)"
        ".map(row => [row.rule, Number(row.kept), Number(row.share)])"
    )
    assert [(name, kept) for name, kept, _ in told] == [(rule.name, rule.kept) for rule in step.rules]
    assert [share for *_, share in told] == pytest.approx([rule.kept_probability for rule in step.rules], abs=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": None, "typical_p": 0.6, "temperature": 0.9},
        {"top_k": 150, "typical_p": 0.9, "epsilon_cutoff": 0.004, "temperature": 0.7},
        {"top_k": 100, "min_p": 0.05, "eta_cutoff": 0.02, "temperature": 0.6},
        {"no_repeat_ngram": 1, "suppress_tokens": [11, 13], "top_p": 0.8},
        {"no_repeat_ngram": 1, "temperature": 0},
    ],
    ids=str,
)
def test_the_page_computes_every_rule_as_the_run_did(
    browser: Browser, big_model: mlxgen.Model, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Also what a ban removed: it is among the candidates, and stays cut whatever the controls say."""
    text = PROMPT + PROMPT
    record = mlxgen.trace(big_model, text, 6, seed=4, ignore_eos=True, greedy_path=False, **options)
    browser.show(page(record), tmp_path)
    browser.click("#more")
    bans = 0
    for step in record.steps:
        browser.click(f"#tokens button[data-step='{step.index}']")
        rows = browser.js(
            "return [...document.querySelectorAll('#candidates tbody tr')].map(r => [r.dataset.token, r.dataset.p])"
        )
        assert [int(token) for token, _ in rows] == [one.token for one in step.candidates]
        wrong = [
            one for one, (_, p) in zip(step.candidates, rows, strict=True) if (float(p) > 0) != (one.cut_by is None)
        ]
        assert len(wrong) <= 2  # at the very edge of a cut
        assert [float(p) for _, p in rows] == pytest.approx([one.rule_probability for one in step.candidates], abs=0.02)
        told = browser.js(
            "return [...document.querySelectorAll('#rules [data-kept]')].map(r => [r.dataset.rule, r.dataset.kept])"
        )
        assert [name for name, _ in told] == [rule.name for rule in step.rules]
        for (_, kept), rule in zip(told, step.rules, strict=True):
            assert int(kept) == pytest.approx(rule.kept, rel=0.05, abs=2)
        banned = [one.token for one in step.candidates if one.cut_by in ("no_repeat_ngram", "suppress_tokens")]
        bans += len(banned)
        browser.move("top-k", 201)
        open_ = {int(token) for token, p in rows if float(p) > 0}
        assert not open_ & set(banned)
        browser.click("#reset")
    assert bool(bans) == ("no_repeat_ngram" in options)
    assert browser.console() == []


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_a_contrast_of_4_5_to_1(opened: Browser, dark: bool) -> None:
    opened.size(1280, 900, dark)
    opened.click("#tokens button[data-step='20']")
    seen, low = opened.js(CONTRAST)
    assert seen > 100 and low == []


def test_controls_have_names_for_those_who_listen(opened: Browser) -> None:
    nameless = opened.js(
        "return [...document.querySelectorAll('button, input, select')].filter(e =>"
        " !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).map(e => e.outerHTML)"
    )
    assert nameless == []
    assert opened.js("return document.documentElement.lang") == "en"
    opened.click("#next")
    assert opened.text("#said").startswith("Step 2 of 40: chose ")


@pytest.mark.parametrize("width", [1280, 375])
def test_it_fits_the_width(opened: Browser, width: int) -> None:
    opened.size(width, 800)
    for index in (0, 39):
        opened.click(f"#tokens button[data-step='{index}']")
        assert opened.js("return document.documentElement.scrollWidth <= innerWidth")
    picture = opened.screenshot()
    assert picture.startswith(b"\x89PNG")
    if folder := os.environ.get("MLXGEN_SCREENSHOTS"):  # for a person to look at; they stay out of the repository
        Path(folder, f"trace-{width}.png").write_bytes(picture)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0, "max_tokens": 3},
        {"max_kv_size": 12, "keep": 2, "max_tokens": 30},
        {"overflow": "slide", "max_tokens": 70},
        {"repetition_penalty": 1.5, "min_p": 0.05, "logit_bias": {5: float("-inf")}, "max_tokens": 5},
        {"temperature": 3.5, "top_k": None, "max_tokens": 5},
        {"no_repeat_ngram": 1, "bad_words": ["e", [5]], "min_tokens": 20, "suppress_tokens": [97], "max_tokens": 30},
        {"typical_p": 0.7, "epsilon_cutoff": 0.001, "eta_cutoff": 0.01, "temperature": 1.5, "max_tokens": 5},
    ],
    ids=["greedy", "rotating", "sliding", "penalties", "hot", "bans", "cutoffs"],
)
def test_every_kind_of_trace_shows_without_an_error_or_a_request(
    browser: Browser, model: mlxgen.Model, tmp_path: Path, options: dict[str, Any]
) -> None:
    steps = options.pop("max_tokens")
    record = mlxgen.trace(model, PROMPT, steps, seed=2, ignore_eos=True, **options)
    file = tmp_path / "page.html"
    file.write_text(page(record), encoding="utf-8")
    browser.requests()
    browser.open(file)
    browser.js("for (let i = 0; i < arguments[0]; i++) document.getElementById('next').click()", steps)
    for control, most in (("temperature", 2), ("top-k", 201), ("top-p", 1)):
        browser.move(control, most)
    browser.click("#more")
    assert browser.text("#where").startswith(f"Step {steps} of {steps}")
    assert browser.console() == []
    assert browser.requests() == [file.as_uri()]
    if record.steps[-1].cache.dropped:
        assert "Dropped: " in browser.text("#dropped")
    slid = next((step.index for step in record.steps if step.cache.slid), None)
    if slid is not None:
        browser.click(f"#tokens button[data-step='{slid}']")
        assert "the context slid" in browser.text("#slid")


def test_a_hostile_prompt_shows_as_text(
    browser: Browser, build_model: Callable[..., mlxgen.Model], tmp_path: Path
) -> None:
    model = build_model(n_positions=256)
    record = mlxgen.trace(model, HOSTILE, 3, seed=1)
    file = tmp_path / "page.html"
    file.write_text(page(record), encoding="utf-8")
    browser.requests()
    browser.open(file)
    shown = browser.text("#tokens")
    assert "</script><script>alert(1)</script>" in shown and "\\xe2" in shown and "U+0000" in shown
    assert browser.js("return document.querySelectorAll('#tokens script, #tokens img').length") == 0
    assert browser.console() == [] and browser.requests() == [file.as_uri()]


def test_a_trace_without_steps_says_so(browser: Browser, model: mlxgen.Model, tmp_path: Path) -> None:
    browser.show(page(mlxgen.trace(model, [5] * 64)), tmp_path)
    assert "No token was generated" in browser.text("#tokens") and browser.console() == []
