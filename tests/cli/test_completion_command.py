"""`mlxgen completion`: what a shell is given to complete, by click's protocol and in real shells."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlxgen.cli.main import COMMANDS, main
from mlxgen.weights import ALIASES

from ..support.hub import CONFIG
from ..support.models import tiny_gpt2
from ..support.processes import fresh
from .running import run

SHELLS = ("zsh", "bash", "fish")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A converted model, one whose name is hidden by an alias, a cached GPT-2 and a cached BERT."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("tales-4bit", "gpt2"):
        tiny_gpt2(n_embd=16, n_layer=1, n_head=2).write(tmp_path / "home" / "models" / name)
    (tmp_path / "home" / "models" / "notes").mkdir()
    monkeypatch.setenv("MLXGEN_HOME", str(tmp_path / "home"))
    for repo, config in (("someone/story", CONFIG), ("someone/bert", b'{"model_type": "bert"}'), ("someone/bad", b"{")):
        snapshot = tmp_path / "hub" / f"models--{repo.replace('/', '--')}" / "snapshots" / "0123"
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_bytes(config)
    return tmp_path


def completed(*words: str, shell: str = "bash") -> list[str]:
    """What a shell gets for these words, of which the last one is incomplete."""
    environment = {
        "_MLXGEN_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(("mlxgen", *words)),
        "COMP_CWORD": words[-1] if shell == "fish" else str(len(words)),
    }
    result = CliRunner().invoke(main, [], prog_name="mlxgen", env=environment)
    assert result.exit_code == 0 and not result.stderr, result.output
    return result.stdout.rstrip("\n").splitlines()


def test_commands_and_options_complete() -> None:
    assert completed("tok") == ["plain,tokenize"]
    assert [line.removeprefix("plain,") for line in completed("")] == list(COMMANDS)
    assert completed("generate", "--temp") == ["plain,--temperature"]
    assert completed("generate", "--overflow", "s") == ["plain,stop", "plain,slide"]
    assert completed("completion", "") == [f"plain,{shell}" for shell in SHELLS]


@pytest.mark.parametrize(
    "before",
    [
        ("generate", "-m"),
        ("generate", "A king", "--model"),
        ("chat", "--draft"),
        ("trace", "-m"),
        ("tokenize", "-m"),
        ("score", "-m"),
        ("batch", "-m"),
        ("bench", "-m"),
        ("info",),
    ],
    ids=" ".join,
)
def test_models_complete_by_their_names_and_as_folders(home: Path, before: tuple[str, ...]) -> None:
    words = [json.dumps(word) if " " in word else word for word in before]
    found = completed(*words, "")
    assert found[0] == "dir,"  # the shell completes folders, and bash forgets what came before that
    names = [line.removeprefix("plain,") for line in found[1:]]
    assert set(names) == {"fairy-tales", "tales-4bit", "someone/story", *ALIASES}
    assert completed(*words, "gpt2-") == ["dir,gpt2-", "plain,gpt2-medium", "plain,gpt2-large", "plain,gpt2-xl"]
    assert completed(*words, "some") == ["dir,some", "plain,someone/story"]


def test_other_arguments_complete_as_what_they_are(home: Path) -> None:
    assert completed("models", "rm", "") == ["plain,tales-4bit"]
    assert completed("models", "") == ["plain,rm"]
    assert completed("convert", "") == ["file,"]
    assert completed("convert", "tal") == ["file,tal", "plain,tales-4bit"]
    assert completed("convert", "gpt2", "-o", "o") == ["file,o"]
    for words in (("score",), ("batch",), ("batch", "in.jsonl", "-o"), ("trace", "--html"), ("chat", "--load")):
        assert completed(*words, "x") == ["file,x"], words
    assert completed("generate", "A") == []


def test_shells_that_show_it_are_told_what_a_name_is(home: Path) -> None:
    found = completed("info", "", shell="zsh")
    triples = list(zip(found[::3], found[1::3], found[2::3], strict=True))
    assert triples[:2] == [("dir", ".", "_"), ("plain", "fairy-tales", "bundled")]
    assert ("plain", "gpt2", "openai-community/gpt2") in triples and ("plain", "someone/story", "cached") in triples
    assert "plain,tales-4bit\tconverted" in completed("info", "tal", shell="fish")


def test_completing_imports_nothing_heavy() -> None:
    script = (
        "import json, sys, io; sys.stdout = io.TextIOWrapper(io.BytesIO()); from mlxgen.cli.main import main\n"
        "try: main([], prog_name='mlxgen')\n"
        "except SystemExit: pass\n"
        "heavy = [m for m in ('mlx', 'numpy', 'torch', 'transformers', 'tokenizers', 'rich') if m in sys.modules]\n"
        "print(json.dumps([sys.stdout.buffer.getvalue().decode(), heavy]), file=sys.__stdout__)"
    )
    words = {"_MLXGEN_COMPLETE": "bash_complete", "COMP_WORDS": "mlxgen info fairy", "COMP_CWORD": "2"}
    shown, heavy = fresh(script, env=os.environ | words)
    assert "plain,fairy-tales" in shown and heavy == []


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_says_at_its_end_where_it_goes(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0 and not result.stderr
    *_, said = result.stdout.split("\n\n")
    assert all(line.startswith("#") for line in said.splitlines()) and f"mlxgen completion {shell} > ~/." in said
    assert result.stdout.startswith("#compdef mlxgen\n") == (shell == "zsh")


def test_the_users_shell_is_the_default_and_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/local/bin/fish")
    assert run("completion").stdout == run("completion", "fish").stdout
    for shell, args in (("/bin/zsh", ["csh"]), ("/bin/csh", []), ("", [])):
        monkeypatch.setenv("SHELL", shell)
        result = run("completion", *args)
        assert result.exit_code == 2 and "zsh" in result.stderr and "fish" in result.stderr.splitlines()[-1]


# In the shells themselves, as far as they are here

ASK = {
    "bash": """
source {script}
COMP_WORDS=(mlxgen info "{word}"); COMP_CWORD=2
_mlxgen_completion mlxgen 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    "zsh": """
compdef() {{ }}
compadd() {{ print -rl -- $completions }}
_describe() {{ print -rl -- $completions_with_descriptions }}
_path_files() {{ print -r -- paths $1 }}
source {script}
words=(mlxgen info "{word}"); CURRENT=3
_mlxgen_completion
""",
    "fish": """
source {script}
complete -C "mlxgen info {word}"
""",
}


@pytest.mark.parametrize("word", ["", "tal"])
@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_itself_completes(home: Path, shell: str, word: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    script = home / "completion"
    script.write_text(run("completion", shell).stdout)
    asking = ASK[shell].format(script=script, word=word)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HF_HUB_CACHE": str(home / "hub"),
    }
    quiet = {"zsh": ["-f"], "bash": ["--norc"], "fish": ["--no-config"]}[shell]
    ended = subprocess.run([shell, *quiet, "-c", asking], capture_output=True, text=True, timeout=60, env=environment)
    names = re.findall(r"fairy-tales|tales-4bit|someone/story|gpt2-xl", ended.stdout)
    every = ["fairy-tales", "gpt2-xl", "someone/story", "tales-4bit"]
    assert sorted(set(names)) == (["tales-4bit"] if word else every), ended.stderr
