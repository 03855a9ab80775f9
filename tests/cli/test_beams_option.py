"""`mlxgen generate --beams`: the texts of mlxgen.beam_search, best first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mlxgen
from mlxgen.generation.beams import Beams

from .running import on_terminal, one_line, run


def test_the_best_text_is_that_of_the_python_function(folder: str, model: mlxgen.Model) -> None:
    result = run("generate", "Önce upon", "-m", folder, "-n", "20", "--beams", "4")
    (expected,) = mlxgen.beam_search(model, "Önce upon", max_tokens=20)
    assert (result.exit_code, result.stdout, result.stderr) == (0, expected.text + "\n", "")


def test_every_option_reaches_the_python_function(folder: str, model: mlxgen.Model) -> None:
    text = (
        "-n 30 --beams 5 --num-samples 3 --length-penalty -0.5 --early-stopping never --repetition-penalty 1.2"
        " --presence-penalty 0.1 --frequency-penalty 0.2 --logit-bias 5=-3 --no-repeat-ngram 2 --ban frog"
        " --min-tokens 4 --suppress-tokens 7,8 --stop zzz --greedy"
    )
    result = run("generate", "Far far away", "-m", folder, *text.split(), "--json")
    expected = mlxgen.beam_search(
        model,
        "Far far away",
        max_tokens=30,
        beams=5,
        n_best=3,
        length_penalty=-0.5,
        early_stopping="never",
        repetition_penalty=1.2,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        logit_bias={5: -3.0},
        no_repeat_ngram=2,
        bad_words="frog",
        min_tokens=4,
        suppress_tokens=[7, 8],
        stop="zzz",
    )
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [record["tokens"] for record in records] == [one.tokens for one in expected]
    assert [record["score"] for record in records] == [one.score for one in expected]
    for early_stopping, value in (("on", True), ("off", False)):
        args = ("--beams", "3", "-n", "30", "--early-stopping", early_stopping)
        (expected,) = mlxgen.beam_search(model, "Far", beams=3, max_tokens=30, early_stopping=value)
        assert run("generate", "Far", "-m", folder, *args).stdout == expected.text + "\n"


def test_json_has_each_texts_log_probability_and_score(folder: str, model: mlxgen.Model) -> None:
    result = run("generate", "Once", "-m", folder, "-n", "9", "--beams", "4", "--num-samples", "4", "--json")
    expected = mlxgen.beam_search(model, "Once", n_best=4, max_tokens=9)
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [record["sample"] for record in records] == [0, 1, 2, 3]
    assert [record["score"] for record in records] == sorted((one.score for one in expected), reverse=True)
    for record, one in zip(records, expected, strict=True):
        assert (record["text"], record["logprob"], record["logprobs"]) == (one.text, one.logprob, one.logprobs)
        assert (record["beams"], record["seed"], record["finish_reason"]) == (4, None, one.finish_reason)


def test_texts_are_separated_by_an_empty_line_and_echo_repeats_the_prompt(folder: str, model: mlxgen.Model) -> None:
    result = run("generate", "Once", "-m", folder, "-n", "9", "--beams", "3", "--num-samples", "2", "--echo")
    one, two = mlxgen.beam_search(model, "Once", beams=3, n_best=2, max_tokens=9)
    assert result.stdout == f"Once{one.text}\n\nOnce{two.text}\n"


def test_a_prompt_of_ids_is_searched_from(folder: str, model: mlxgen.Model) -> None:
    result = run("generate", "--ids", "5 6 7", "-m", folder, "-n", "9", "--beams", "3", "--json")
    assert json.loads(result.stdout)["tokens"] == mlxgen.beam_search(model, [5, 6, 7], beams=3, max_tokens=9)[0].tokens


def test_statistics_name_each_answers_score(folder: str, model: mlxgen.Model) -> None:
    args = ("-m", folder, "-n", "9", "--beams", "3", "--num-samples", "2", "--ignore-eos")
    result = run("generate", "Once", *args, "--stats")
    lines = result.stderr.splitlines()
    assert lines[1].startswith("Search: 3 beams, 9 steps, ")
    for number, one in enumerate(mlxgen.beam_search(model, "Once", beams=3, n_best=2, max_tokens=9, ignore_eos=True)):
        assert lines[2 + number].startswith(f"Answer {number + 1}: 9 tokens (length), score {one.score:.4f}")
    assert run("generate", "Once", *args, "-q").stderr == ""


def test_on_a_terminal_a_long_search_shows_how_far_it_is(folder: str) -> None:
    code, output = on_terminal("-m", "mlxgen", "generate", "Once", "-m", folder, "-n", "40", "--beams", "3")
    assert code == 0 and "Searching" in output and "Search: 3 beams" in output


def test_a_full_context_is_hinted_at(small_folder: Path) -> None:
    result = run("generate", "Once", "-m", str(small_folder), "--beams", "2", "--ignore-eos", "--stats")
    assert "Hint: the answer ends where the model's 32 positions are full" in result.stderr


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("--beams 0", "--beams"),
        ("--beams 2 --num-samples 3", "--num-samples must be at most --beams (2)"),
        ("--length-penalty 2", "--length-penalty needs --beams"),
        ("--early-stopping on", "--early-stopping needs --beams"),
        ("--beams 2 -t 0.5", "temperature cannot be used with beams: a beam search draws nothing at random"),
        ("--beams 2 --greedy -t 0.5", "temperature cannot be used with beams"),
        ("--beams 2 -k 40", "top_k cannot be used with beams"),
        ("--beams 2 -p 0.5", "top_p cannot be used with beams"),
        ("--beams 2 --min-p 0.5", "min_p cannot be used with beams"),
        ("--beams 2 --seed 0", "seed cannot be used with beams"),
        ("--beams 2 --lookahead", "lookahead cannot be used with beams"),
        ("--beams 2 --draft nothing", "draft cannot be used with beams"),
        ("--beams 2 --logprobs 2", "logprobs cannot be used with beams"),
        ("--beams 2 --max-kv-size 8", "max_kv_size cannot be used with beams"),
        ("--beams 2 --overflow slide", "overflow cannot be used with beams"),
        ("--beams 2 --length-penalty nan", "length_penalty must be a number"),
        ("--beams 2 --json --echo", "--echo"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_the_model_is_opened(given: str, told: str) -> None:
    result = run("generate", "Once", "-m", "no/such-model", *given.split())
    assert result.exit_code == 2 and told in result.stderr


def test_what_stands_in_the_environment_for_sampling_is_no_obstacle(folder: str, model: mlxgen.Model) -> None:
    environment = {"MLXGEN_GENERATE_TEMPERATURE": "0.5", "MLXGEN_GENERATE_SEED": "3", "MLXGEN_GENERATE_BEAMS": "2"}
    result = run("generate", "Once", "-m", folder, "-n", "9", env=environment)
    assert result.stdout == mlxgen.beam_search(model, "Once", beams=2, max_tokens=9)[0].text + "\n"


def test_too_many_beams_for_the_vocabulary_and_a_full_prompt_are_one_line(folder: str, small_folder: Path) -> None:
    many = run("generate", "Once", "-m", folder, "--beams", "5000")
    assert many.exit_code == 2 and one_line(many.stderr) and "allows at most" in many.stderr
    full = run("generate", "x" * 32, "-m", str(small_folder), "--beams", "2")
    assert full.exit_code == 1 and one_line(full.stderr) and "32 tokens and leaves no room" in full.stderr


def test_an_interrupted_search_prints_nothing(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Beams, "go_on", interrupted)
    result = run("generate", "Once", "-m", folder, "--beams", "2")
    assert (result.exit_code, result.output) == (130, "")
