"""The command line: what goes where, which exit status, and what happens when things break."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import mlxgen
from mlxgen.cli.main import COMMANDS, main

WORDS = "Once upon a time there was a king who lived in a house by the sea. Far far away, and so on!\n"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny random GPT-2 as transformers saves it."""
    import tokenizers
    import torch
    import transformers

    path = tmp_path_factory.mktemp("tiny")
    library = tokenizers.ByteLevelBPETokenizer()
    library.train_from_iterator([WORDS] * 4, vocab_size=300, special_tokens=["<|endoftext|>"])
    size = library.get_vocab_size()
    end = library.token_to_id("<|endoftext|>")
    library.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"})
    )
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=size,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        initializer_range=0.2,
        bos_token_id=end,
        eos_token_id=end,
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session")
def model(folder: str) -> mlxgen.Model:
    return mlxgen.load(folder)


def run(*args: str, stdin: str | bytes | None = None, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, args, input=stdin, env=env)


def command(*args: str, **options: Any) -> "subprocess.CompletedProcess[bytes]":
    """A real process; standard input is empty unless given."""
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(
        [sys.executable, "-m", "mlxgen", *args], capture_output=True, timeout=120, check=False, **options
    )


def one_line(error: str) -> bool:
    return error.startswith("Error: ") and error.count("\n") == 1


# --- the answer


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


# --- where the prompt comes from


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


# --- statistics, hints, quiet


def test_statistics_and_hints_come_when_asked_for(folder: str) -> None:
    args = ("generate", "Once upon ", "-m", folder, "-n", "5")
    assert run(*args).stderr == ""
    asked = run(*args, "--stats").stderr
    assert "Hint: the prompt ends with a space" in asked
    assert "tokens/s" in asked and "Peak memory" in asked and "Seed: " in asked
    assert run(*args, "--stats", "-q").stderr == ""


def test_on_a_terminal_the_prompt_and_the_statistics_are_shown(folder: str) -> None:
    code, output = on_terminal("-m", "mlxgen", "generate", "Once upon ", "-m", folder, "-n", "5", "--greedy")
    assert code == 0
    assert output.startswith("Hint: ")
    assert "\nOnce upon " in output and "Generation: " in output


def on_terminal(*args: str) -> tuple[int, str]:
    """Run Python with standard output and error on a pseudo-terminal."""
    main_end, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, *args], stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal
    ) as process:
        os.close(terminal)
        output = b""
        while True:
            try:
                piece = os.read(main_end, 4096)
            except OSError:  # Linux says so when the other end is closed
                break
            if not piece:
                break
            output += piece
        os.close(main_end)
        code = process.wait(timeout=60)
    return code, output.decode().replace("\r\n", "\n")


def test_a_long_prompt_shows_a_bar_that_goes_away() -> None:
    script = (
        "import sys; from mlxgen.cli.output import prefill_bar\n"
        "for total in (100, 1000):\n"
        "    show = prefill_bar(quiet=len(sys.argv) > 1) or (lambda done, total: None)\n"
        "    for done in (0, total // 2, total): show(done, total)\n"
    )
    code, output = on_terminal("-c", script)
    assert code == 0 and output.count("Reading the prompt") == 3 and "50%" in output
    assert output.endswith("\r\033[K\033[?25h"), "its line is cleared for the answer, and the cursor is there again"
    assert on_terminal("-c", script, "quiet") == (0, "")


# --- failures


@pytest.mark.parametrize(
    "args",
    [
        "-t -1",
        "-t nan",
        "-k 0",
        "-p 0",
        "-p 1.5",
        "--min-p 2",
        "-n 0",
        "--seed -1",
        "--max-kv-size 0",
        "--keep -1",
        "--overflow fall",
        "--num-samples 0",
        "--logit-bias five",
        "--logit-bias 5=nan",
        "--repetition-penalty 0",
        "--nonsense",
        "second-argument",
    ],
)
def test_wrong_use_is_status_2_before_any_model_is_opened(args: str) -> None:
    result = run("generate", "Once", "-m", "/no/such/folder", *args.split())
    assert result.exit_code == 2
    assert "Error: " in result.stderr and "/no/such/folder" not in result.stderr
    assert result.stdout == ""


def test_an_empty_stop_text_is_wrong_use() -> None:
    assert run("generate", "Once", "-m", "/no/such/folder", "--stop", "").exit_code == 2


def test_a_missing_model_is_status_1_in_one_line(tmp_path: Path) -> None:
    for name in (str(tmp_path / "nothing"), str(tmp_path)):
        result = run("generate", "Once", "-m", name)
        assert (result.exit_code, result.stdout) == (1, "")
        assert one_line(result.stderr) and name in result.stderr


def test_a_prompt_that_does_not_fit_names_the_way_out(folder: str) -> None:
    result = run("generate", "Once " * 200, "-m", folder)
    assert result.exit_code == 1 and one_line(result.stderr) and "--overflow slide" in result.stderr
    assert run("generate", "Once " * 200, "-m", folder, "-n", "5", "--overflow", "slide").exit_code == 0


def test_an_unforeseen_error_is_one_line_too(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(mlxgen, "load", broken)
    result = run("generate", "Once")
    assert result.exit_code == 1 and one_line(result.stderr)
    assert "RuntimeError: first line second line" in result.stderr and "MLXGEN_DEBUG=1" in result.stderr
    shown = run("generate", "Once", env={"MLXGEN_DEBUG": "1"})
    assert shown.exit_code == 1 and "Traceback" in shown.stderr
    assert "Traceback" not in run("generate", "Once", env={"MLXGEN_DEBUG": "0"}).stderr


def test_a_closed_pipe_ends_quietly(folder: str) -> None:
    script = f'"{sys.executable}" -m mlxgen generate Once -m "{folder}" -n 400 --overflow slide --ignore-eos'
    ended = subprocess.run(
        ["bash", "-c", f"{script} | head -c 1 >/dev/null; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_a_full_disk_behind_standard_output_is_told() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "mlxgen", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert ended.returncode == 1 and one_line(ended.stderr.decode()) and b"No space left" in ended.stderr


def test_closed_standard_streams_are_no_traceback(folder: str) -> None:
    script = f'"{sys.executable}" -m mlxgen generate Once -m "{folder}" -n 3'
    closed = subprocess.run(["bash", "-c", f"{script} >&-"], capture_output=True, timeout=60, check=False)
    assert closed.returncode == 1 and one_line(closed.stderr.decode())
    no_stdin = subprocess.run(
        ["bash", "-c", f'"{sys.executable}" -m mlxgen generate -m "{folder}" <&-'],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert no_stdin.returncode == 2 and b"Traceback" not in no_stdin.stderr
    no_stderr = subprocess.run(["bash", "-c", f"{script} --stats 2>&-"], capture_output=True, timeout=60, check=False)
    assert no_stderr.returncode == 0 and no_stderr.stdout


def test_ctrl_c_is_status_130_without_a_traceback(folder: str) -> None:
    options = ("-n", "100000000", "--overflow", "slide", "--ignore-eos")
    with subprocess.Popen(
        [sys.executable, "-m", "mlxgen", "generate", "Once", "-m", folder, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(1)  # text comes while it is generated
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        errors = process.stderr.read()
        assert process.wait(timeout=60) == 130
    assert errors == b""


def test_the_text_streams(folder: str) -> None:
    """The first piece is there long before the end."""
    options = ("-n", "300", "--ignore-eos", "--overflow", "slide")
    with subprocess.Popen(
        [sys.executable, "-m", "mlxgen", "generate", "Once", "-m", folder, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        first = time.monotonic()
        process.stdout.read()
        assert time.monotonic() - first > 0.05


def test_an_ascii_terminal_gets_question_marks(folder: str) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = command("generate", "Once é", "-m", folder, "-n", "2", "--echo", env=env)
    assert ended.returncode == 0 and ended.stdout.startswith(b"Once ?")
    record = json.loads(command("generate", "Once é", "-m", folder, "-n", "2", "--json", env=env).stdout)
    assert record["prompt"] == "Once é"


# --- the environment


def test_options_and_the_model_come_from_the_environment(folder: str) -> None:
    env = {"MLXGEN_MODEL": folder, "MLXGEN_GENERATE_MAX_TOKENS": "3", "MLXGEN_GENERATE_GREEDY": "1"}
    record = json.loads(run("generate", "Once", "--json", env=env).stdout)
    assert record["model"] == folder and record["generated_tokens"] == 3
    given = run("generate", "Once", "-m", folder, "-n", "3", "--greedy", "--json")
    assert json.loads(given.stdout)["tokens"] == record["tokens"]
    assert json.loads(run("info", "--json", env=env).stdout)["model"] == folder


# --- info, help, version


def test_info_counts_what_transformers_counts(folder: str) -> None:
    import transformers

    reference = transformers.GPT2LMHeadModel.from_pretrained(folder)
    info = json.loads(run("info", folder, "--json").stdout)
    assert info["n_parameters"] == sum(p.numel() for p in reference.parameters())
    assert info["stored_bytes"] == 4 * info["n_parameters"] and info["stored_dtype"] == "F32"
    sizes = {name: info[name] for name in ("n_layer", "n_head", "n_embd", "n_inner", "n_positions")}
    assert sizes == {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_inner": 128, "n_positions": 64}
    assert info["cache_bytes_per_token"] == 2 * 2 * 32 * 4
    assert [end["text"] for end in info["end_tokens"]] == ["<|endoftext|>"]


def test_info_as_text_and_its_failures(folder: str, tmp_path: Path) -> None:
    text = run("info", folder)
    assert text.exit_code == 0 and text.stderr == ""
    assert "layers      2\n" in text.stdout and "end tokens  0 '<|endoftext|>'" in text.stdout
    missing = run("info", str(tmp_path))
    assert missing.exit_code == 1 and one_line(missing.stderr)
    assert all(key in run("info", "--help").stdout for key in json.loads(run("info", folder, "--json").stdout))


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0 and result.stdout.startswith("Usage:")
    command = main.get_command(click.Context(main), name)
    assert command is not None and command.get_short_help_str(limit=200) == COMMANDS[name][1]
    assert f"  {name}" in run("--help").stdout and COMMANDS[name][1] in run("--help").stdout


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from mlxgen.cli.main import main; main(['--help'], standalone_mode=False);"
        "print(*(m for m in ('mlx', 'numpy', 'torch', 'transformers', 'mlx_lm', 'huggingface_hub', 'rich',"
        " 'tokenizers', 'ctypes.util') if m in sys.modules), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=True)
    assert ended.stderr == b"\n"


def test_version_and_unknown_commands() -> None:
    assert run("--version").stdout == f"mlxgen {mlxgen.__version__}\n"
    unknown = run("compose")
    assert unknown.exit_code == 2 and "No such command 'compose'" in unknown.stderr
