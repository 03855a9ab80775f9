"""`mlxgen generate`: the text is that of mlxgen.generate, and goes to standard output alone."""

import json
import os
import subprocess
import sys

import pytest

import mlxgen

from .running import command, on_terminal, one_line, run


def test_the_text_is_that_of_the_python_function(folder: str, model: mlxgen.Model) -> None:
    result = run("generate", "Once upon", "-m", folder, "-n", "20", "--seed", "7", "--no-echo")
    expected = mlxgen.generate(model, "Once upon", max_tokens=20, seed=7)
    assert result.exit_code == 0, result.output
    assert result.stdout == expected.text + "\n"
    assert result.stderr == ""


def test_every_option_reaches_the_python_function(folder: str, model: mlxgen.Model) -> None:
    text = (
        "-n 30 -t 1.3 -k 50 -p 0.9 --min-p 0.01 --repetition-penalty 1.2 --presence-penalty 0.1"
        " --frequency-penalty 0.2 --logit-bias 5=-3 --logit-bias 6=1.5 --seed 3 --ignore-eos"
        " --max-kv-size 16 --keep 2 --overflow slide --stop zzz"
    )
    result = run("generate", "Far far away", "-m", folder, *text.split())
    expected = mlxgen.generate(
        model,
        "Far far away",
        max_tokens=30,
        temperature=1.3,
        top_k=50,
        top_p=0.9,
        min_p=0.01,
        repetition_penalty=1.2,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        logit_bias={5: -3.0, 6: 1.5},
        seed=3,
        ignore_eos=True,
        max_kv_size=16,
        keep=2,
        overflow="slide",
        stop="zzz",
    )
    assert result.exit_code == 0, result.output
    assert result.stdout == expected.text + "\n"


def test_echo_shows_the_prompt_first(folder: str) -> None:
    result = run("generate", "Once upon", "-m", folder, "-n", "5", "--greedy", "--echo")
    plain = run("generate", "Once upon", "-m", folder, "-n", "5", "--greedy", "--no-echo")
    assert result.stdout == "Once upon" + plain.stdout


def test_greedy_is_temperature_zero(folder: str) -> None:
    greedy = run("generate", "Once", "-m", folder, "-n", "9", "--greedy")
    assert greedy.stdout == run("generate", "Once", "-m", folder, "-n", "9", "-t", "0").stdout
    both = run("generate", "Once", "-m", folder, "--greedy", "-t", "0.5")
    assert both.exit_code == 2 and "give one of them" in both.stderr
    asked = {"MLXGEN_GENERATE_TEMPERATURE": "0.9"}
    assert run("generate", "Once", "-m", folder, "-n", "9", "--greedy", env=asked).stdout == greedy.stdout


def test_top_k_can_be_switched_off(folder: str, model: mlxgen.Model) -> None:
    result = run("generate", "Once", "-m", folder, "-n", "9", "--seed", "1", "-k", "off")
    assert result.stdout == mlxgen.generate(model, "Once", max_tokens=9, seed=1, top_k=None).text + "\n"


def test_samples_differ_and_their_reported_seeds_repeat_them(folder: str) -> None:
    args = ("-m", folder, "-n", "12", "--json")
    lines = run("generate", "Once", *args, "--seed", "5", "--num-samples", "3").stdout.splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["sample"] for record in records] == [0, 1, 2]
    assert len({record["text"] for record in records}) == 3
    for record in records:
        again = json.loads(run("generate", "Once", *args, "--seed", str(record["seed"])).stdout)
        assert again["tokens"] == record["tokens"]


def test_samples_are_separated_by_an_empty_line(folder: str, model: mlxgen.Model) -> None:
    result = run("generate", "Once", "-m", folder, "-n", "6", "--greedy", "--num-samples", "2")
    text = mlxgen.generate(model, "Once", max_tokens=6, temperature=0).text
    assert result.stdout == f"{text}\n\n{text}\n"


def test_a_stop_text_is_not_shown_and_may_be_a_line_break(folder: str, model: mlxgen.Model) -> None:
    bias = {f"--logit-bias={token}=-inf" for token in model.end_tokens}
    text = run("generate", "Once", "-m", folder, "-n", "30", "--greedy", *bias).stdout[:-1]
    stop = text[10:13]
    result = run("generate", "Once", "-m", folder, "-n", "30", "--greedy", "--stop", stop, *bias)
    assert result.stdout == text[: text.index(stop)] + "\n"
    newline = str(model.tokenizer.encode("\n")[0])
    forced = run("generate", "Once", "-m", folder, "-n", "5", "--logit-bias", f"{newline}=1000", "--stop", r"\n")
    assert forced.stdout == "\n"


JSON_KEYS = (
    "model prompt text tokens logprobs candidates finish_reason sample seed prompt_tokens generated_tokens"
    " prompt_tps generation_tps peak_memory guesses accepted"
)


def test_json_is_one_object_a_line_with_the_documented_keys(folder: str, model: mlxgen.Model) -> None:
    result = run("generate", "Once upon", "-m", folder, "-n", "4", "--seed", "2", "--json", "--logprobs", "3")
    assert result.stdout.count("\n") == 1
    record = json.loads(result.stdout)
    assert list(record) == JSON_KEYS.split()
    expected = mlxgen.generate(model, "Once upon", max_tokens=4, seed=2, logprobs=3)
    assert (record["text"], record["tokens"]) == (expected.text, expected.tokens)
    assert record["logprobs"] == pytest.approx(expected.logprobs)
    assert record["generated_tokens"] == len(record["candidates"]) == len(expected.tokens)
    assert [list(candidate) for candidate in record["candidates"][0]] == 3 * [
        ["token", "text", "probability", "rule_probability", "kept"]
    ]
    assert all(key in run("generate", "--help").stdout for key in JSON_KEYS.split())


def test_logprobs_without_json_go_to_standard_error(folder: str) -> None:
    plain = run("generate", "Once", "-m", folder, "-n", "4", "--greedy")
    result = run("generate", "Once", "-m", folder, "-n", "4", "--greedy", "--logprobs", "2")
    assert result.stdout == plain.stdout
    assert len(result.stderr.splitlines()) == 4


def test_the_prompt_may_come_from_standard_input(folder: str) -> None:
    args = ("-m", folder, "-n", "6", "--greedy")
    from_argument = run("generate", "Once upon", *args).stdout
    for text in ("Once upon", "Once upon\n", "Once upon\r\n", "\ufeffOnce upon\n"):
        assert run("generate", *args, stdin=text).stdout == from_argument
    assert run("generate", "-", *args, stdin="Once upon\n").stdout == from_argument
    assert run("generate", "Once upon", *args, stdin="something else").stdout == from_argument


@pytest.mark.parametrize("stdin", ["", "\n"])
def test_no_prompt_at_all_is_wrong_use(folder: str, stdin: str) -> None:
    result = run("generate", "-m", folder, stdin=stdin)
    assert result.exit_code == 2 and "Error: standard input is empty" in result.stderr


def test_a_prompt_that_is_not_utf8_is_wrong_use(folder: str) -> None:
    result = run("generate", "-m", folder, stdin=b"Once \xff upon")
    assert result.exit_code == 2 and "not UTF-8 text (byte 5)" in result.stderr
    assert command("generate", "-m", folder, os.fsdecode(b"\xff")).returncode == 2


def test_the_empty_prompt_starts_from_the_end_token(folder: str, model: mlxgen.Model) -> None:
    result = run("generate", "", "-m", folder, "-n", "5", "--greedy")
    (end,) = model.end_tokens
    assert result.stdout == mlxgen.generate(model, [end], max_tokens=5, temperature=0).text + "\n"


def test_statistics_and_hints_come_when_asked_for(folder: str) -> None:
    args = ("generate", "Once upon ", "-m", folder, "-n", "5")
    assert run(*args).stderr == ""
    asked = run(*args, "--stats").stderr
    assert "Hint: the prompt ends with a space" in asked
    assert "tokens/s" in asked and "Peak memory" in asked and "Seed: " in asked
    assert run(*args, "--stats", "-q").stderr == ""


def test_a_prompt_that_fills_the_context_is_hinted_at_when_asked_for(folder: str, model: mlxgen.Model) -> None:
    full = model.config.n_positions
    texts = ("O" + "x" * n for n in range(10 * full))
    text = next(text for text in texts if len(model.tokenizer.encode(text)) == full)
    args = ("generate", text, "-m", folder, "-n", "5", "--no-echo")
    assert run(*args).stderr == ""
    assert "Hint: the prompt fills all" in run(*args, "--stats").stderr


def test_on_a_terminal_the_prompt_and_the_statistics_are_shown(folder: str) -> None:
    code, output = on_terminal("-m", "mlxgen", "generate", "Once upon ", "-m", folder, "-n", "5", "--greedy")
    assert code == 0
    assert output.startswith("Hint: ")
    assert "\nOnce upon " in output and "Generation: " in output


def test_a_prompt_that_does_not_fit_names_the_way_out(folder: str) -> None:
    result = run("generate", "Once " * 200, "-m", folder)
    assert result.exit_code == 1 and one_line(result.stderr) and "--overflow slide" in result.stderr
    assert run("generate", "Once " * 200, "-m", folder, "-n", "5", "--overflow", "slide").exit_code == 0


def test_the_text_streams(folder: str) -> None:
    """Much text is there before an end that never comes."""
    options = ("-n", "100000000", "--ignore-eos", "--overflow", "slide")
    with subprocess.Popen(
        [sys.executable, "-m", "mlxgen", "generate", "Once", "-m", folder, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            assert len(process.stdout.read(200)) == 200
            assert process.poll() is None
        finally:
            process.kill()


def test_the_text_is_the_same_with_guesses_and_how_many_were_right_is_told() -> None:
    common = ("generate", "One two three, one two three, one two three,", "-n", "30", "--greedy", "--ignore-eos")
    plain = run(*common, "--stats")
    assert plain.exit_code == 0 and "Guesses" not in plain.stderr
    for way in (("--lookahead",), ("--draft", "fairy-tales")):
        guessed = run(*common, *way, "--stats")
        assert guessed.exit_code == 0 and guessed.stdout == plain.stdout
        assert "Guesses: " in guessed.stderr and " right, " in guessed.stderr
    refused = run(*common, "--lookahead", "--draft", "fairy-tales")
    assert refused.exit_code == 2 and "give one of them" in refused.stderr


def test_an_answer_that_ends_with_the_context_says_once_how_to_go_on(folder: str) -> None:
    options = ("Once", "-m", folder, "-n", "600", "--ignore-eos", "--num-samples", "2")
    said = run("generate", *options, "--stats").stderr
    assert said.count("--overflow slide continues past them") == 1 and "64 positions" in said
    assert "overflow" not in run("generate", *options).stderr
    assert "overflow" not in run("generate", *options, "--stats", "--overflow", "slide", "-n", "70").stderr


def test_an_empty_prompt_is_noticed(folder: str) -> None:
    assert "the prompt is empty" in run("generate", "", "-m", folder, "-n", "2", "--stats").stderr
    assert run("generate", "", "-m", folder, "-n", "2").stderr == ""


def test_a_greedy_answer_has_no_seed(folder: str) -> None:
    for options in (("--greedy",), ("--temperature", "0", "--seed", "3")):
        assert json.loads(run("generate", "Once", "-m", folder, "-n", "2", "--json", *options).stdout)["seed"] is None
    sampled = run("generate", "Once", "-m", folder, "-n", "2", "--json", "--seed", "3")
    assert json.loads(sampled.stdout)["seed"] == 3


def test_a_prompt_that_begins_with_a_dash_is_told_where_it_goes(folder: str) -> None:
    for command_name in ("generate", "trace"):
        refused = run(command_name, "-5 degrees", "-m", folder)
        assert refused.exit_code == 2 and '"--"' in refused.stderr and "standard input" in refused.stderr
    assert '"--"' not in run("generate", "--temprature", "1").stderr
    assert '"--"' not in run("info", "-5").stderr
    assert run("generate", "-m", folder, "-n", "2", "--", "-5 degrees").exit_code == 0


def test_every_ban_and_cut_reaches_the_python_function(folder: str, model: mlxgen.Model) -> None:
    text = (
        "-n 30 --seed 3 -k off --typical-p 0.95 --epsilon-cutoff 0.0005 --eta-cutoff 0.001 --no-repeat-ngram 2"
        " --ban he --min-tokens 25 --suppress-tokens 5,6"
    )
    result = run("generate", "Far far away", "-m", folder, *text.split(), "--ban", r"\n", "--ban", " the")
    options = {
        "typical_p": 0.95,
        "epsilon_cutoff": 0.0005,
        "eta_cutoff": 0.001,
        "no_repeat_ngram": 2,
        "bad_words": ["he", "\n", " the"],
        "min_tokens": 25,
        "suppress_tokens": [5, 6],
    }
    expected = mlxgen.generate(model, "Far far away", max_tokens=30, seed=3, top_k=None, **options)
    assert result.exit_code == 0, result.output
    assert result.stdout == expected.text + "\n"
    asked = {"MLXGEN_GENERATE_BAN": " the", "MLXGEN_GENERATE_SUPPRESS_TOKENS": "5 6"}
    by_environment = run("generate", "Far far away", "-m", folder, "-n", "9", "--seed", "3", env=asked)
    expected = mlxgen.generate(model, "Far far away", max_tokens=9, seed=3, bad_words=[" the"], suppress_tokens=[5, 6])
    assert by_environment.stdout == expected.text + "\n"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--no-repeat-ngram", "0"], "no_repeat_ngram must be a whole number of at least 1, or off, not 0"),
        (["--ban", ""], "the text must not be empty"),
        (["--suppress-tokens", "5,x"], "expected token ids such as 13,198, not '5,x'"),
        (["--suppress-tokens", "5,-1"], "suppress_tokens has -1 in place of a token id"),
        (["--suppress-tokens", "999"], "suppress_tokens has token 999, but the highest token id is"),
        (["--min-tokens", "9", "-n", "8"], "min_tokens must be at most max_tokens (8), not 9"),
        (["--typical-p", "0"], "typical_p must be above 0 and at most 1, or off, not 0"),
        (["--epsilon-cutoff", "1"], "epsilon_cutoff must be at least 0 (off) and below 1, not 1"),
        (["--ban", "<|endoftext|>"], "bad_words has the end token"),
    ],
)
def test_a_wrong_ban_or_cut_is_a_line_and_status_2(folder: str, args: list[str], told: str) -> None:
    result = run("generate", "Once", "-m", folder, *args)
    assert result.exit_code == 2 and told in result.stderr and result.stdout == ""
