"""What goes to a terminal: nothing that it would obey, from whatever file or model it came. Pipes get the bytes."""

import io
import json
import sys
from pathlib import Path

import pytest

import mlxgen
from mlxgen.cli.jsonl.output_file import json_line
from mlxgen.cli.output import escaped, say, write, write_json
from mlxgen.cli.progress import ProgressBar

from ..support.models import tiny_gpt2
from .running import command, on_terminal, one_line, run

TITLE = "\x1b]0;owned\x07"  # an xterm's window title
CONTROL_BYTES = [*range(0x20), *range(0x7F, 0xA0)]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_every_control_character_but_line_break_and_tab_is_escaped() -> None:
    shown = escaped("".join(map(chr, CONTROL_BYTES)))
    assert [c for c in shown if not c.isprintable()] == ["\t", "\n"]
    assert escaped("\x1b[2J\x9b2J\u202eabc\r\n") == "\\x1b[2J\\x9b2J\\u202eabc\n"
    for text in ("naïve\ta\nb", "👩\u200d👧", "שלום", "a\u00a0b", "한국어 日本語"):
        assert escaped(text) == text


def test_a_models_text_is_escaped_on_a_terminal_and_exact_in_a_pipe(folder: str, model: mlxgen.Model) -> None:
    (escape,) = model.tokenizer.encode("\x1b")
    arguments = ["generate", f"a{TITLE}", "-m", folder, "-n", "3", "--greedy", "--logit-bias", f"{escape}=1000"]
    code, shown = on_terminal("-m", "mlxgen", *arguments, "--echo", "--no-stats")
    assert (code, shown) == (0, "a\\x1b]0;owned\\x07" + "\\x1b" * 3 + "\n")
    piped = command(*arguments, "--echo")
    assert piped.stdout == f"a{TITLE}\x1b\x1b\x1b\n".encode()


def test_write_and_say_escape_and_keep_our_own_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    write("a\x07b\n", "red")
    say(f"c{TITLE}", dim=True)
    ProgressBar("Converting").say("d\x1b[31m")
    assert out.getvalue() == "\x1b[31ma\\x07b\n\x1b[0m"
    assert err.getvalue() == "\x1b[2mc\\x1b]0;owned\\x07\x1b[0m\nd\\x1b[31m\n"


def test_json_has_no_raw_control_character_and_reads_back_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"text": "".join(map(chr, CONTROL_BYTES)) + "é\u202e", "n": [float("inf"), 1.5]}
    expected = value | {"n": [None, 1.5]}
    write_json(value)
    for line in (capsys.readouterr().out, json_line(value).decode()):
        assert not set(line.rstrip("\n")) & set(map(chr, CONTROL_BYTES)) and "é" in line
        assert json.loads(line) == expected


def test_errors_that_quote_a_file_are_one_harmless_line(tmp_path: Path) -> None:
    folder = tiny_gpt2().write(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    layer = {f"h.0\n{TITLE}\x9b": {"bits": 99}}
    (folder / "config.json").write_text(json.dumps(config | {"quantization": {"bits": 4, "group_size": 64} | layer}))
    result = run("info", str(folder))
    assert result.exit_code == 1 and one_line(result.stderr)
    assert "h.0\\n\\x1b]0;owned\\x07\\x9b: bits is 99" in result.stderr
    result = run("info", f"/no/such{TITLE}")
    assert result.stderr == "Error: /no/such\\x1b]0;owned\\x07: no such folder\n"
    result = run("generate", "a", "b\x1b[31m")
    assert result.exit_code == 2 and "\x1b" not in result.stderr


def test_a_listed_folders_name_is_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXGEN_HOME", str(tmp_path))
    tiny_gpt2().write(tmp_path / "models" / f"evil\n{TITLE}")
    result = run("models")
    assert "evil\\n\\x1b]0;owned\\x07  converted" in result.stdout


def test_a_session_of_another_program_is_quoted_harmlessly(tmp_path: Path, model: mlxgen.Model) -> None:
    import mlx.core as mx

    file = tmp_path / "x.safetensors"
    arrays = {f"{layer}.{at}": mx.zeros((1,)) for layer in range(model.config.n_layer) for at in range(3)}
    classes = {f"1.{layer}": f"Evil{TITLE}" for layer in range(model.config.n_layer)}
    mx.save_safetensors(str(file), arrays, {"0": "", "2.0": ""} | classes)
    with pytest.raises(mlxgen.MlxgenError, match="Evil") as caught:
        mlxgen.Session.load(file, model)
    assert str(caught.value).isprintable()
