"""Options: the help lists them all, and unknown names are told by their nearest of ours."""

from __future__ import annotations

import inspect
import re
from functools import partial
from typing import Any

import pytest

import mlxgen
from mlxgen.errors import OptionError
from mlxgen.generation.option_names import FOREIGN, nearest, way_out
from mlxgen.generation.request import check_options


def test_the_help_of_generate_lists_every_option_and_its_default() -> None:
    text = inspect.getdoc(mlxgen.generate) or ""
    listed = {name for line in re.findall(r"^ {4}([\w, ]+):", text, re.M) for name in line.split(", ")}
    assert listed == set(mlxgen.Options.__annotations__)
    defaults = check_options(seed=1).options
    for name in ("max_tokens", "temperature", "top_k", "ignore_eos", "keep", "lookahead", "logprobs"):
        (line,) = re.findall(rf"^ {{4}}{name}: (.*)$", text, re.M)
        assert re.search(rf"; {defaults[name]}\b", line), line  # type: ignore[literal-required]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("max_new_tokens", "did you mean max_tokens\\?"),
        ("do_sample", "use temperature=0 for greedy text"),
        ("num_beams", r"mlxgen\.beam_search"),
        ("beams", r"mlxgen\.beam_search"),
        ("length_penalty", r"mlxgen\.beam_search"),
        ("no_repeat_ngram_size", "did you mean no_repeat_ngram\\?"),
        ("bad_words_ids", "did you mean bad_words\\?"),
        ("min_new_tokens", "did you mean min_tokens\\?"),
        ("top_n", "did you mean top_k\\?"),
        ("temprature", "did you mean temperature\\?"),
        ("repitition_penalty", "did you mean repetition_penalty\\?"),
        ("Max-Tokens", "did you mean max_tokens\\?"),
        ("num_return_sequences", r"num_samples of mlxgen\.batch"),
        ("colour", "the options are max_tokens, "),
    ],
)
def test_an_unknown_option_names_the_nearest_of_ours(model: mlxgen.Model, name: str, told: str) -> None:
    wrong: dict[str, Any] = {name: 1}
    uses = [partial(mlxgen.generate, model), partial(mlxgen.stream, model), mlxgen.Session(model).generate]
    for use in uses:
        with pytest.raises(OptionError, match=f"unknown option '{name}'; .*{told}"):
            use("Far", **wrong)
    with pytest.raises(OptionError, match=told):
        list(mlxgen.batch(model, [mlxgen.Prompt("Far", **wrong)]))


def test_what_is_recommended_is_there() -> None:
    known = {*mlxgen.Options.__annotations__, "num_samples", "beams"}
    for name, ours in FOREIGN.items():
        if name == ours:
            continue
        assert name not in known
        word = re.match(r"[\w.]+", ours)
        assert word is not None
        if word[0].startswith("mlxgen."):
            assert hasattr(mlxgen, word[0].removeprefix("mlxgen."))
        elif ours.isidentifier() and ours not in known:  # left out until there is one
            assert way_out(name, known).startswith("the options are")


def test_a_line_of_a_file_may_have_a_number_of_samples() -> None:
    assert nearest("n", ["prompt", "num_samples"]) == "num_samples"
    assert nearest("stream", ["prompt", "num_samples"]) is None
