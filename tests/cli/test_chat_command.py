"""`mlxgen chat` without a terminal: lines in, answers out."""

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import Result

from mlxgen import load
from mlxgen.cli.chat import input_line
from mlxgen.cli.chat.slash_commands import COMMANDS
from mlxgen.generation.session import Session
from mlxgen.model import Model

from ..support.chats import CHATML, write_model
from .running import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "bytes")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(str(folder))


def chat(folder: Path, lines: str, *options: str) -> Result:
    return run("chat", "-m", str(folder), "--seed", "1", "-n", "5", *options, stdin=lines)


def test_lines_in_one_json_object_an_answer_out(folder):
    ran = chat(folder, "hi\nhow are you\n\n/undo\nhow are you\n//slash\n", "--json")
    assert ran.exit_code == 0, ran.output
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [a["user"] for a in answers] == ["hi", "how are you", "how are you", "/slash"]
    assert [a["turn"] for a in answers] == [1, 2, 2, 3]
    assert answers[1]["text"] == answers[2]["text"] and answers[1]["seed"] == answers[2]["seed"]
    assert all(len(a["tokens"]) == a["generated_tokens"] <= 5 for a in answers)
    assert ran.stderr == ""


def test_commands_without_a_terminal(folder, tmp_path):
    path = tmp_path / "talk.safetensors"
    changes = "/set temperature=0 top_p=off max-tokens=2"
    lines = ["hi", f"/save {path}", changes, "more", "/reset", f"/load {path}", "/stats", "bye", "/exit", "no"]
    ran = chat(folder, "\n".join(lines), "--json")
    assert ran.exit_code == 0, ran.output
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [(a["user"], a["turn"]) for a in answers] == [("hi", 1), ("more", 2), ("bye", 2)]
    assert answers[1]["generated_tokens"] <= 2
    assert "Turns: 1." in ran.stderr


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("/nothing", "unknown command /nothing"),
        ("/undo", "nothing to undo"),
        ("/set temperature=-1", "temperature must be 0"),
        ("/set colour=2", "cannot set 'colour=2'"),
        ("/set top_k=many", "must be a number"),
        ("/save", "needs a file name"),
        ("/load /no/such/file", "No such file"),
        ("/edit x", "nothing to edit"),
        ("/set stop=", "must not be empty"),
        ('/set stop="the end', "quote is not closed"),
        ("/export", "needs a file name"),
        ("/export talk.txt", "nothing to export"),
    ],
)
def test_a_wrong_command_says_why(folder, line, reason):
    ran = chat(folder, line + "\n")
    assert ran.exit_code == 1 and ran.stdout == ""
    assert ran.stderr.startswith("Error: line 1: ") and reason in ran.stderr and len(ran.stderr.splitlines()) == 1


def test_a_refused_line_does_not_end_the_run(folder):
    lines = f"hi\n/nothing\n\n{'x' * 200}\n/undo\n/undo\nbye\n"
    ran = chat(folder, lines, "--json", "--overflow", "stop")
    assert ran.exit_code == 1 and ran.stderr == ""
    first, unknown, long, empty, last = [json.loads(line) for line in ran.stdout.splitlines()]
    assert (first["user"], last["user"], last["turn"]) == ("hi", "bye", 1)
    assert (unknown["line"], unknown["user"]) == (2, "/nothing") and "unknown command" in unknown["error"]
    assert long["line"] == 4 and "128 positions" in long["error"]
    assert empty["line"] == 6 and "nothing to undo" in empty["error"]
    plain = chat(folder, lines, "--overflow", "stop")
    assert plain.exit_code == 1 and len(plain.stderr.splitlines()) == 3
    assert plain.stdout.splitlines() == [answer["text"] for answer in (first, last)]


def test_no_input_ends_the_conversation(folder, tmp_path):
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe.safetensors")
    names = [
        f"{tmp_path}/file/below",
        f"{tmp_path}/file",
        f"{tmp_path}/pipe.safetensors",
        "/proc/talk",
        "/dev/null",
        "/",
        ".",
        "~nobody-here/talk",
        "x" * 300,
        "a\0b",
    ]
    inputs = [f"/{command} {name}" for name in names for command in ("save", "load")]
    inputs.remove(f"/save {tmp_path}/file")  # which saves to file.safetensors
    inputs.remove("/save /dev/null")
    inputs += ["/set top_k=" + "9" * 5000, "/set seed=1e400", "/set =", "/set temperature=nan", "/" + "x" * 10_000]
    ran = chat(folder, "\n".join(["hi", *inputs, "bye"]) + "\n", "--json")
    assert ran.exit_code == 1 and ran.stderr == "", ran.stderr
    first, *refused, last = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [entry["line"] for entry in refused] == [*range(2, 2 + len(inputs))]
    assert all(entry["error"] and "\n" not in entry["error"] for entry in refused)
    assert (first["turn"], last["turn"], last["user"]) == (1, 2, "bye")


def test_an_unforeseen_error_does_not_end_the_conversation(folder, monkeypatch):
    def broken(*args):
        raise RuntimeError("[malloc] Unable to allocate 9 bytes.\nTraceback")

    monkeypatch.setattr("mlxgen.cli.chat.slash_commands.Commands.stats", broken)
    monkeypatch.setitem(COMMANDS, "/stats", (broken, ""))
    ran = chat(folder, "hi\n/stats\nbye\n")
    assert ran.exit_code == 1 and len(ran.stdout.splitlines()) == 2
    assert ran.stderr.startswith("Error: line 2: RuntimeError: [malloc] Unable") and ran.stderr.count("\n") == 1


def test_a_rotating_cache_of_any_size_can_be_saved(folder, model, tmp_path):
    path = tmp_path / "talk.safetensors"
    ran = chat(folder, f"hello\n/save {path}\n/load {path}\nbye\n", "--max-kv-size", "9" * 30)
    assert ran.exit_code == 0, ran.output
    assert ran.stdout == chat(folder, "hello\nbye\n").stdout


def test_the_history_goes_on_in_memory_where_its_file_cannot_be_written(tmp_path):
    history = input_line._history(tmp_path / "state" / "history")
    shutil.rmtree(tmp_path / "state")
    history.append_string("hello")
    assert history.get_strings() == ["hello"]


@pytest.mark.parametrize(
    ("options", "pinned"),
    [
        (("--max-kv-size", "40", "--system", "Be kind."), 8),
        (("--max-kv-size", "24", "--system", "Be kind."), 6),
        (("--max-kv-size", "40", "--system", "Be kind.", "--keep", "3"), 3),
        (("--max-kv-size", "40"), 0),
        (("--max-kv-size", "4000", "--system", "x" * 500), 32),
    ],
)
def test_a_rotating_cache_pins_the_system_text(folder, model, tmp_path, options, pinned):
    path = tmp_path / "talk.safetensors"
    ran = chat(folder, f"hello\n/save {path}\n", *options)
    assert ran.exit_code == 0, ran.output
    session = Session.load(path, model)
    assert session.options.keep == pinned and [layer.keep for layer in session.cache] == [pinned]


def test_a_dim_line_says_once_when_a_rotating_cache_drops(folder):
    note = "(longer than --max-kv-size 40: only the first 8 and the newest tokens are read now)"
    ran = chat(folder, "hello\n" * 5, "--max-kv-size", "40", "--system", "Be kind.", "--stats", "--ignore-eos")
    assert ran.exit_code == 0 and ran.stderr.count(note) == 1
    ran = chat(folder, "hello\n", "--max-kv-size", "40", "--system", "Be kind.", "--stats", "--ignore-eos")
    assert ran.exit_code == 0 and "max-kv-size" not in ran.stderr


def test_the_answers_are_the_same_with_guesses():
    def answers(*way: str) -> list[dict]:
        done = run("chat", "--json", "--greedy", "-n", "12", *way, stdin="Once upon a time\nOnce upon a time\n")
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    plain = answers()
    for way in (["--lookahead"], ["--draft", "fairy-tales"]):
        guessed = answers(*way)
        assert [line["text"] for line in guessed] == [line["text"] for line in plain]
        assert sum(line["guesses"] for line in guessed) > 0


def test_a_line_that_is_not_utf8_is_an_error_object_and_the_rest_is_answered(folder):
    ran = run("chat", "-m", str(folder), "-n", "3", "--json", stdin=b"one\ntw\xff o\nthree\n")
    assert ran.exit_code == 1 and ran.stderr == ""
    one, two, three = [json.loads(line) for line in ran.stdout.splitlines()]
    assert (one["user"], three["user"], three["turn"]) == ("one", "three", 2)
    assert two["line"] == 2 and two["user"] == "tw\ufffd o" and "not UTF-8 text (byte 3)" in two["error"]


def test_a_system_text_that_does_not_fit_is_not_blamed_on_a_line(folder):
    ran = chat(folder, "hi\n", "--system", "word " * 100, "--overflow", "stop")
    assert ran.exit_code == 2 and ran.stdout == ""
    assert "--system: the system text has" in ran.stderr and "line 1" not in ran.stderr


def test_a_template_that_refuses_system_texts_is_named(tmp_path):
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}" + CHATML
    folder = write_model(tmp_path / "strict", template=refusing)
    ran = chat(folder, "hi\n", "--system", "be brief")
    assert ran.exit_code == 2 and "--system: " in ran.stderr and "no system here" in ran.stderr
    assert "no system here" in chat(folder, "/system be brief\nhi\n").stderr


def test_stop_texts_are_set_shown_and_removed(folder):
    lines = ["/set stop=\\n stop='the end' max_tokens=3", "/set", "/set stop=off", "/set", "hi"]
    ran = chat(folder, "\n".join(lines), "--stats")
    assert ran.exit_code == 0, ran.stderr
    shown = [line for line in ran.stderr.splitlines() if "temperature=" in line]
    assert r"stop='\n' stop='the end'" in shown[0] and "max_tokens=3" in shown[0] and "stop=off" in shown[1]


def test_bans_are_set_shown_and_removed(folder):
    text = "max_tokens=30 temperature=0"
    free = json.loads(chat(folder, f"/set {text}\nhi\n", "--json").stdout)
    first = free["tokens"][0]
    lines = [
        f"/set {text} ban=king bad_words='of the' suppress_tokens={first},5 no_repeat_ngram=2 min_tokens=3",
        "/set",
        "hi",
        "/set ban=off suppress_tokens=off no_repeat_ngram=off min_tokens=off",
        "/set",
        "/retry",
    ]
    ran = chat(folder, "\n".join(lines), "--json", "--stats")
    assert ran.exit_code == 0, ran.stderr
    shown = [line for line in ran.stderr.splitlines() if "temperature=" in line]
    for option in ("bad_words='king' bad_words='of the'", f"suppress_tokens={first},5", "no_repeat_ngram=2"):
        assert option in shown[0]
    for option in ("bad_words=off", "suppress_tokens=off", "no_repeat_ngram=off", "min_tokens=off"):
        assert option in shown[1]
    banned, again = map(json.loads, ran.stdout.splitlines())
    assert first not in banned["tokens"] and again["tokens"] == free["tokens"]


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("suppress_tokens=5,x", "suppress_tokens must be token ids such as 13,198, not '5,x'"),
        ("suppress_tokens=99999", "suppress_tokens has token 99999"),
        ("ban=", "a text of bad_words must not be empty; bad_words=off removes all of them"),
        ("no_repeat_ngram=0", "no_repeat_ngram must be a whole number of at least 1"),
        ("min_tokens=999", "min_tokens must be at most max_tokens"),
        ("typical_p=2", "typical_p must be above 0 and at most 1"),
    ],
)
def test_a_wrong_ban_is_refused_when_it_is_set(folder, option, told):
    ran = chat(folder, f"/set {option}\n/set\n", "--stats")
    assert ran.exit_code == 1 and told in ran.stderr
    assert option not in ran.stderr.splitlines()[-1]


def test_a_stop_text_that_is_set_ends_the_answer(folder):
    free = json.loads(chat(folder, "hi\n", "--json", "-n", "30").stdout)["text"]
    stop = next(character for character in free[1:] if character.isalnum())
    lines = chat(folder, f"/set stop={stop} max_tokens=30\nhi\n", "--json").stdout
    cut = json.loads(lines)
    assert cut["finish_reason"] == "stop" and cut["text"] == free.split(stop)[0].strip()


def test_commands_say_what_happened(folder, tmp_path):
    told = chat(
        folder, f"/system\n/system be brief\nhi\n/system\n/save {tmp_path}/a\n/load {tmp_path}/a\n", "--stats"
    ).stderr
    assert "there is no system text to remove" in told and "the system text is set)" in told
    assert "the system text is removed, from the next turn on" in told
    assert "loaded 1 turn with" in told and "1 turns" not in told


def test_one_token_is_one_token(folder):
    told = chat(folder, "h\n/stats\n", "--stats", "-n", "1").stderr
    assert "Prompt: 1 token," in told and "Generation: 1 token," in told and " 1 tokens" not in told


def test_an_answer_that_ends_at_once_is_noticed(folder, model):
    end = min(model.end_tokens)
    ran = chat(folder, "hi\n", "--stats", "--logit-bias", f"{end}=1000")
    assert "ended its answer at once" in ran.stderr
    assert "ended its answer at once" not in chat(folder, "hi\n", "--stats").stderr


def texts(ran: Result) -> list[str]:
    return [json.loads(line)["text"] for line in ran.stdout.splitlines()]


def test_a_dialogue_is_shown_and_exported_as_it_was(folder, tmp_path):
    file = tmp_path / "talk.txt"
    options = ("--template", "plain", "--system", "A talk.")
    ran = chat(folder, f"hi\nhow are you\n/export {file}\n/show\n", *options)
    answers = texts(chat(folder, "hi\nhow are you\n", "--json", *options))
    expected = f"A talk.\n\n> hi\n{answers[0]}\n\n> how are you\n{answers[1]}\n"
    assert file.read_text() == expected and ran.stdout.endswith(expected)


def test_a_story_is_exported_as_one_text(folder, tmp_path):
    options = ("--template", "story")
    one, two = texts(chat(folder, "Once\nThen\n", "--json", *options))
    chat(folder, f"Once\nThen\n/export {tmp_path}/story.txt\n", *options)
    whole = "Once" + one
    assert (tmp_path / "story.txt").read_text().rstrip() == (whole.rstrip("\n") + "\n\nThen" + two).rstrip()
