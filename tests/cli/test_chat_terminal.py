"""`mlxgen chat` on a real pseudo-terminal: prompts, streaming, Ctrl-C, history, several lines, commands."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import mlxgen

from ..support.models import letter_tokenizer, tiny_gpt2

pty = pytest.importorskip("pty", reason="no pseudo-terminals here")

PATIENCE = 120  # seconds that anything may take on a machine that is busy
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>()][0-9A-B]?|\x1b\][^\x07]*\x07")
ENTER, UP, CTRL_C, CTRL_D, ALT_ENTER = "\r", "\x1b[A", "\x03", "\x04", "\x1b\r"
READY = r"> $"
LETTERS = [*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.ĠĊ"]
# Letters alone, on one line: no line break, end token or mark.
ENDLESS = [part for token in range(-1, 3) for part in ("--logit-bias", f"{len(LETTERS) + token}=-inf")]
BUNDLED = Path(mlxgen.__path__[0]).parent / "weights" / "fairy_tales" / "model.safetensors"


class Terminal:
    """A program on a pseudo-terminal. What it writes is matched in order, without its escape sequences."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self.child = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=environment, close_fds=True
        )
        os.close(theirs)
        self._raw = b""
        self._seen = 0

    @property
    def raw(self) -> str:
        return self._raw.decode("utf-8", "replace")

    @property
    def text(self) -> str:
        raw = self._raw.decode("utf-8", "replace").replace("\x08\x1b[2C", " ")  # a blank, as a move of the cursor
        return ESCAPES.sub("", raw).replace("\r", "")

    def expect(self, pattern: str) -> str:
        """Wait for a pattern after what was matched before; returns what came until its end."""
        end = time.monotonic() + PATIENCE
        while True:
            fresh = self.text[self._seen :]
            if found := re.search(pattern, fresh):
                self._seen += found.end()
                return fresh[: found.end()]
            if time.monotonic() > end or not self._read():
                raise AssertionError(f"{pattern!r} did not come; instead: {fresh[-2000:]!r}")

    def send(self, keys: str) -> None:
        self._seen = len(self.text)
        os.write(self._ours, keys.encode())

    def ask(self, line: str) -> str:
        """Type a line, and wait for the next prompt; returns what was shown between."""
        self.send(line + ENTER)
        return self.expect(r"(?s)\n(.*\n)?> $")

    def close(self) -> int:
        while self._read():
            pass
        return self.child.wait(PATIENCE)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._ours], [], [], 1)
        if not ready:
            return self.child.poll() is None
        try:
            data = os.read(self._ours, 1 << 16)
        except OSError:  # the other end is closed
            return False
        self._raw += data
        return bool(data)

    def end(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        os.close(self._ours)


@pytest.fixture(scope="module")
def dialogpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights in DialoGPT's shape, small; its tokens are letters, so that nothing looks like a prompt."""
    folder = tmp_path_factory.mktemp("models") / "DialoGPT-random"
    return tiny_gpt2(12, letter_tokenizer(LETTERS), n_embd=48, n_layer=3, n_head=12).write(folder)


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Start `mlxgen chat` on a terminal; every one started in a test has the same history."""
    started: list[Terminal] = []

    def start(*options: str, term: str = "xterm") -> Terminal:
        environment = os.environ | {
            "TERM": term,
            "PROMPT_TOOLKIT_NO_CPR": "1",  # there is nobody here to tell where the cursor is
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "COLUMNS": "100",
            "LINES": "40",
        }
        started.append(Terminal([sys.executable, "-m", "mlxgen", "chat", *options], environment))
        started[-1].expect(READY)
        return started[-1]

    yield start
    for terminal in started:
        terminal.end()


def answer_of(shown: str) -> str:
    """The answer: the first line after the typed one."""
    return shown.split("\n")[1]


def test_a_dialogue_with_every_command(chat, dialogpt, tmp_path):
    terminal = chat("-m", str(dialogpt), "--seed", "5", "-n", "12", "-t", "2", *ENDLESS)
    assert "a dialogue" in terminal.text and "/help" in terminal.text
    first = answer_of(terminal.ask("hello"))
    assert len(first) in range(8, 13)  # a space may come first, and last
    second = answer_of(terminal.ask("how are you"))
    assert "undone: how are you" in terminal.ask("/undo")
    assert answer_of(terminal.ask("how are you")) == second
    assert answer_of(terminal.ask("/retry")) != second
    assert "Turns: 2. Context: " in terminal.ask("/stats")
    assert "saved to" in terminal.ask(f"/save {tmp_path / 'talk'}")
    assert "new conversation" in terminal.ask("/reset")
    assert answer_of(terminal.ask("hello")) == first
    assert "loaded 2 turns" in terminal.ask(f"/load {tmp_path / 'talk'}")
    assert "temperature=0.7" in (terminal.ask("/set temperature=0.7 max_tokens=5"), terminal.ask("/set"))[1]
    assert len(answer_of(terminal.ask("more"))) in range(2, 6)
    assert "from the next turn" in terminal.ask("/system be brief")
    assert "Error: unknown command /nothing" in terminal.ask("/nothing")
    assert all(name in terminal.ask("/help") for name in ("/edit", "/exit"))
    terminal.send("/exit" + ENTER)
    assert terminal.close() == 0


def test_ctrl_c_stops_the_answer_and_keeps_it_and_ctrl_d_leaves(chat, dialogpt):
    terminal = chat("-m", str(dialogpt), "--seed", "5", "-n", "1000000", *ENDLESS)
    terminal.send("tell me everything" + ENTER)
    terminal.expect(r"\n[\w. ]{100}")  # far more than the table: it slides, and streams while it thinks
    os.kill(terminal.child.pid, signal.SIGINT)
    terminal.expect(r"(?s)\(the conversation is longer.*\(stopped\).*> $")
    shown = terminal.ask("/stats")
    assert "Turns: 1." in shown and int(re.search(r"Context: ([\d,]+)", shown)[1].replace(",", "")) > 100
    terminal.send("half a line" + CTRL_C)
    terminal.expect(r"(?s)Ctrl-D or /exit quits.*> $")
    terminal.send(CTRL_D)
    assert terminal.close() == 0


def test_history_is_kept_between_runs_and_an_edit_begins_from_the_old_words(chat, dialogpt):
    options = ("-m", str(dialogpt), "--seed", "5", "-n", "12", "-t", "2", *ENDLESS)
    terminal = chat(*options)
    first = answer_of(terminal.ask("hello there"))
    terminal.send(CTRL_D)
    assert terminal.close() == 0
    terminal = chat(*options)
    assert answer_of(terminal.ask(UP)) == first
    terminal.send("/edit" + ENTER)
    terminal.expect(r"> hello there")
    other = answer_of(terminal.ask(" friend"))
    assert other != first
    terminal.ask("/undo")
    assert answer_of(terminal.ask("hello there friend")) == other


def test_several_lines_and_completion(chat, dialogpt):
    terminal = chat("-m", str(dialogpt), "--seed", "5", "-n", "4", "--json")
    terminal.send("one" + ALT_ENTER + "two\\" + ENTER + "three" + ENTER)
    shown = terminal.expect(r'(?s)\{"turn".*\}\n')
    assert json.loads(shown[shown.index('{"turn"') :])["user"] == "one\ntwo\nthree"
    terminal.expect(READY)
    terminal.send("/und\t")
    terminal.expect("/undo")
    terminal.send(ENTER)
    terminal.expect(r"(?s)undone: one two three.*> $")


@pytest.mark.skipif(not BUNDLED.exists(), reason="the bundled model is not here")
def test_a_story_with_the_bundled_model(chat):
    terminal = chat("--seed", "1", "-n", "20")
    assert "a story" in terminal.text
    first = terminal.ask("Once upon a time there was a king")
    assert len(answer_of(first).split()) > 5
    more = terminal.ask("")
    assert len(more.split()) > 5
    terminal.ask("/undo")
    assert terminal.ask("") == more
    terminal.send(CTRL_D)
    assert terminal.close() == 0


def test_keys_typed_during_an_answer_stay_out_of_it_and_wait_for_the_next_line(chat, dialogpt):
    terminal = chat("-m", str(dialogpt), "--seed", "5", "-n", "1000000", *ENDLESS)
    terminal.send("tell me everything" + ENTER)
    terminal.expect(r"\n[\w. ]{50}")
    os.write(terminal._ours, b"/st?ats")
    terminal.expect(r"[\w. ]{50}")
    os.kill(terminal.child.pid, signal.SIGINT)
    answer = terminal.expect(r"(?s)\(stopped\)")
    assert "?" not in answer and "^C" not in answer
    terminal.expect(r"> /st\?ats$")


@pytest.mark.skipif(not BUNDLED.exists(), reason="the bundled model is not here")
def test_an_answer_on_a_terminal_breaks_between_words(chat):
    shown = chat("--seed", "1", "-n", "120", "--no-stats").ask("Once upon a time there was a king")
    paragraphs = shown.split("\n", 1)[1].removesuffix("> ").split("\n\n")
    for paragraph in paragraphs:
        lines = paragraph.rstrip().split("\n")
        assert max(map(len, lines)) <= 100
        assert all(len(line) + 1 + len(after.split()[0]) > 100 for line, after in pairwise(lines) if after.strip())
    assert sum(paragraph.count("\n") for paragraph in paragraphs) > 2


def test_the_answer_of_a_story_begins_with_a_whole_word(chat, dialogpt):
    options = ("--template", "story", "--seed", "5", "-n", "12", "-t", "2", *ENDLESS)
    terminal = chat("-m", str(dialogpt), *options, "--logit-bias", f"{len(LETTERS) - 2}=-inf")
    first = answer_of(terminal.ask("Once upon a ti"))
    assert first.startswith("ti") and len(first) > 2
    more = answer_of(terminal.ask(""))
    assert more.startswith(first.split()[-1])
    shown = terminal.ask("/show")
    assert "Once upon a " + more in shown


def test_a_loaded_story_is_shown(chat, dialogpt, tmp_path):
    options = ("-m", str(dialogpt), "--template", "story", "--seed", "5", "-n", "12", "-t", "2", *ENDLESS)
    terminal = chat(*options)
    terminal.ask("Once upon a time")
    terminal.ask(f"/save {tmp_path / 'tale'}")
    terminal.send(CTRL_D)
    terminal.close()
    assert "Once upon a time" in chat(*options, "--load", str(tmp_path / "tale")).text
    terminal = chat(*options)
    assert "Once upon a time" in terminal.ask(f"/load {tmp_path / 'tale'}")


def test_a_terminal_without_escape_sequences_gets_none(chat, dialogpt):
    options = ("-m", str(dialogpt), "--seed", "5", "-n", "12", "-t", "2", *ENDLESS)
    terminal = chat(*options, term="dumb")
    first = answer_of(terminal.ask("hello"))
    assert len(first) > 5
    assert "undone: hello" in terminal.ask("/undo")
    assert answer_of(terminal.ask("hello")) == first
    terminal.send("/exit" + ENTER)
    assert terminal.close() == 0 and "\x1b" not in terminal.raw
