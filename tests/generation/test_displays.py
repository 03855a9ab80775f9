"""What Python and notebooks show of models and results: short reprs, and text with probabilities that runs nothing."""

from __future__ import annotations

import math
from html.parser import HTMLParser

import pytest

import mlxgen
from mlxgen.generation.notebook import answer_html
from mlxgen.model import Model
from mlxgen.text.excerpt import excerpt

HOSTILE = """</span><script>alert(1)</script>" onmouseover="alert(2)' <img src=x onerror=alert(3)> &lt;b&gt; \u202e"""


class Spans(HTMLParser):
    """The elements of some HTML, and each span's title and text, as a browser reads them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, set[str]]] = []
        self.spans: list[tuple[str | None, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name for name, _ in attrs}))
        if tag == "span":
            self.spans.append((dict(attrs).get("title"), ""))

    def handle_data(self, data: str) -> None:
        title, text = self.spans[-1]
        self.spans[-1] = (title, text + data)


def test_reprs_are_one_short_line_and_name_what_matters(model: Model) -> None:
    prompt = "Far far away " * 3
    session = mlxgen.Session(model)
    answer = session.generate(prompt, max_tokens=20, seed=1, logprobs=3)
    steps = list(mlxgen.stream(model, prompt, max_tokens=3, seed=1, logprobs=3))
    score = mlxgen.score(model, prompt)
    trace = mlxgen.trace(model, prompt, 3, seed=1)
    batch = next(iter(mlxgen.batch(model, [prompt], max_tokens=20, seed=1)))
    named = {"Model": model, "Generation": answer, "Step": steps[0], "Score": score, "Trace": trace}
    (beam,) = mlxgen.beam_search(model, prompt, max_tokens=20, ignore_eos=True)
    named |= {"BeamGeneration": beam, "BatchGeneration": batch, "Session": session, "Tokenizer": model.tokenizer}
    for name, one in named.items():
        assert repr(one).startswith(f"{name}(") and len(repr(one)) < 160 and "\n" not in repr(one)
    assert "tokens=20, finish_reason='length'" in repr(answer) and excerpt(answer.text) in repr(answer)
    assert f"logprob={beam.logprob:.4f}, score={beam.score:.4f}, finish_reason='length'" in repr(beam)
    assert f"loss={score.loss:.4f}, perplexity={score.perplexity:.4g}" in repr(score)
    assert f"token={steps[0].token}, text={steps[0].text!r}" in repr(steps[0])
    assert "finish_reason" not in repr(steps[0]) and "finish_reason='length'" in repr(steps[-1])
    assert "'test'" in repr(trace) and "steps=3" in repr(trace)
    assert f"tokens={len(session.tokens)}, cache_length={len(session.tokens) - 1}" in repr(session)
    assert f"vocab_size={model.tokenizer.vocab_size}" in repr(model.tokenizer)


def test_a_score_of_a_token_that_nothing_precedes_has_a_repr() -> None:
    assert repr(mlxgen.Score("a", [5], [None], [None], 1)) == "Score('a', tokens=1)"


def test_a_long_text_is_cut_and_control_characters_are_escaped() -> None:
    assert excerpt("a" * 60) == repr("a" * 60) and excerpt("a" * 61) == repr("a" * 59 + "…")
    assert excerpt("\x1b[31m\n") == r"'\x1b[31m\n'"


def test_a_notebook_shows_the_text_with_each_tokens_probability(model: Model) -> None:
    answer = mlxgen.generate(model, "Far <i>away</i>", max_tokens=12, seed=1, logprobs=2)
    (_, prompt), *spans = Spans(answer._repr_html_()).spans
    assert prompt == "Far <i>away</i>"
    assert "".join(text for _, text in spans).removesuffix("∎") == answer.text
    told = "\n".join(str(title) for title, _ in spans).splitlines()
    for logprob in answer.logprobs:
        assert any(line.startswith(f"{100 * math.exp(logprob):.3g} %") for line in told)
    for row in answer.candidates:
        for candidate in row:
            assert any(repr(candidate.text) in line for line in told)


def test_a_notebook_shows_an_answer_of_a_beam_search_like_any_other(model: Model) -> None:
    (answer,) = mlxgen.beam_search(model, "Far <i>away</i>", max_tokens=12)
    (_, prompt), *spans = Spans(answer._repr_html_()).spans
    assert prompt == "Far <i>away</i>"
    assert "".join(text for _, text in spans).removesuffix("∎") == answer.text


def test_tokens_without_text_are_told_with_the_next_one() -> None:
    logs = [math.log(p) for p in (0.5, 0.25, 0.125)]
    assert Spans(answer_html("", ["", "é", ""], logs)).spans[1:] == [("50 %\n25 %", "é"), ("12.5 %", "∎")]


def test_hostile_text_stays_text() -> None:
    page = answer_html(HOSTILE, [HOSTILE, HOSTILE], [-1.0, -2.0], [HOSTILE, HOSTILE])
    read = Spans(page)
    assert [tag for tag, _ in read.elements] == ["div", "span", "span", "span"]
    assert {name for _, names in read.elements for name in names} == {"style", "title"}
    assert [text for _, text in read.spans] == [HOSTILE] * 3
    assert all(str(title).endswith(HOSTILE) for title, _ in read.spans[1:])


@pytest.mark.parametrize("prompt", [[5, 6], []])
def test_a_prompt_of_ids_is_not_shown(model: Model, prompt: list[int]) -> None:
    answer = mlxgen.generate(model, prompt, max_tokens=2, seed=1)
    assert Spans(answer._repr_html_()).spans[0] == (None, "")
