"""The program around the commands: exit statuses, errors as one line, the environment, help."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

import mlxgen
from mlxgen.cli.main import COMMANDS, main

from .running import command, one_line, run


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


@pytest.mark.parametrize(
    "arguments",
    [
        "generate Once -n 400 --overflow slide --ignore-eos",
        "trace Once -n 60 --ignore-eos",
        "trace Once -n 60 --ignore-eos --compare-seed 2",
    ],
)
def test_a_closed_pipe_ends_quietly(folder: str, arguments: str) -> None:
    script = f'"{sys.executable}" -m mlxgen {arguments} -m "{folder}"'
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


def test_an_ascii_terminal_gets_question_marks(folder: str) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = command("generate", "Once é", "-m", folder, "-n", "2", "--echo", env=env)
    assert ended.returncode == 0 and ended.stdout.startswith(b"Once ?")
    record = json.loads(command("generate", "Once é", "-m", folder, "-n", "2", "--json", env=env).stdout)
    assert record["prompt"] == "Once é"


def test_options_and_the_model_come_from_the_environment(folder: str) -> None:
    env = {"MLXGEN_MODEL": folder, "MLXGEN_GENERATE_MAX_TOKENS": "3", "MLXGEN_GENERATE_GREEDY": "1"}
    record = json.loads(run("generate", "Once", "--json", env=env).stdout)
    assert record["model"] == folder and record["generated_tokens"] == 3
    given = run("generate", "Once", "-m", folder, "-n", "3", "--greedy", "--json")
    assert json.loads(given.stdout)["tokens"] == record["tokens"]
    assert json.loads(run("info", "--json", env=env).stdout)["model"] == folder


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_option_has_a_variable_named_after_its_flag(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    for option in command.params:
        if isinstance(option, click.Option):
            flag = next(opt for opt in option.opts if opt.startswith("--"))
            assert option.resolve_envvar_value(click.Context(command)) is None
            monkeypatch.setenv(f"MLXGEN_{name}_{flag[2:].replace('-', '_')}".upper(), "1")
            assert option.resolve_envvar_value(click.Context(command)) is not None, flag


def test_the_variable_of_a_format_is_named_after_its_flag(folder: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"prompt": "Once"}\n')
    env = {"MLXGEN_BATCH_FORMAT": "text"}
    record = json.loads(run("batch", str(lines), "-m", folder, "-n", "2", "--greedy", env=env).stdout)
    assert record["prompt"] == '{"prompt": "Once"}'


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0 and result.stdout.startswith("Usage:")
    command = main.get_command(click.Context(main), name)
    assert command is not None and command.get_short_help_str(limit=200) == COMMANDS[name]
    assert f"{name} {COMMANDS[name]}" in " ".join(run("--help").stdout.split())


def test_neither_help_nor_reading_the_options_imports_anything_heavy() -> None:
    script = (
        "import sys, click; from mlxgen.cli.main import COMMANDS, main; main(['--help'], standalone_mode=False);"
        "assert all(main.get_command(click.Context(main), name) for name in COMMANDS);"
        "print(*(m for m in ('mlx', 'numpy', 'torch', 'transformers', 'mlx_lm', 'huggingface_hub', 'rich',"
        " 'tokenizers', 'ctypes.util') if m in sys.modules), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=True)
    assert ended.stderr == b"\n"


def test_the_terminal_says_off_and_not_none() -> None:
    refused = run("generate", "x", "-k", "0")
    assert refused.exit_code == 2 and "or off, not 0" in refused.stderr and "None" not in refused.stderr


def test_a_misspelt_command_names_the_nearest() -> None:
    refused = run("generat")
    assert refused.exit_code == 2 and "No such command 'generat' (did you mean generate?)" in refused.stderr
    assert "did you mean" not in run("xyzzy").stderr


def test_version_and_unknown_commands() -> None:
    assert run("--version").stdout == f"mlxgen {mlxgen.__version__}\n"
    unknown = run("compose")
    assert unknown.exit_code == 2 and "No such command 'compose'" in unknown.stderr
