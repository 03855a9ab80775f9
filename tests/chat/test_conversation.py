"""Conversations: templates, what is processed, undo and retry, sliding by turns, and the lines of `mlxgen chat`."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from click.testing import CliRunner

from mlxgen import load
from mlxgen.chat.conversation import Conversation
from mlxgen.chat.templates import TemplateError, choose_template
from mlxgen.cli.main import main
from mlxgen.errors import MlxgenError, OptionError
from mlxgen.generation.request import check_options
from mlxgen.generation.session import Session
from mlxgen.generation.session_file import SessionFileError
from mlxgen.model import Model

from ..support.models import END, letter_tokenizer, tiny_gpt2

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MESSAGES = [{"role": "user", "content": "Hello"}]
EOS_JOINED = "{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}"


def write_model(folder: Path, *, template: str | None = None, **changes) -> Path:
    """A small model whose tokens are single bytes."""
    sizes = {"n_positions": 128, "n_embd": 16, "n_layer": 1, "n_head": 2} | changes
    return tiny_gpt2(7, letter_tokenizer(), **sizes).write(folder, chat_template=template)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "bytes")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(str(folder))


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(str(write_model(tmp_path_factory.mktemp("models") / "chatml", template=CHATML)))


def conversation(model: Model, template: str = "auto", *, system: str = "", keep: int | None = None, **options):
    session = Session(model, overflow="slide")
    request = check_options(**{"max_tokens": 6, "ignore_eos": True, **options})
    return Conversation(session, choose_template(model, template), system=system, request=request, seed=4, keep=keep)


def said(steps: Sequence) -> str:
    return "".join(step.text for step in steps)


def scripted(model: Model, talk: Conversation, text: str):
    """Make the next answer this text."""
    ids = iter(model.tokenizer.encode(text))
    rows = mx.arange(model.config.vocab_size)
    force = lambda tokens, logits: mx.where(rows == next(ids, 0), 0.0, -1e9)[None]  # noqa: E731
    talk.request = talk.request.changed(logits_processors=[force])


def test_templates_write_what_transformers_writes(tmp_path):
    from transformers import AutoTokenizer

    messages = [{"role": r, "content": f"{r} <1> “ä”"} for r in ("system", "user", "assistant", "user")]
    listing = "{% for m in messages if m.role != 'system' %}\n    {{ m | tojson }}\n{% break %}{% endfor %}"
    for number, template in enumerate((CHATML, EOS_JOINED, listing)):
        folder = write_model(tmp_path / str(number), template=template)
        theirs, ours = AutoTokenizer.from_pretrained(folder), choose_template(load(str(folder)), "model")
        for prompt in (False, True):
            expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
            assert ours.write(messages, prompt) == expected


def test_the_template_is_chosen_by_looking_at_the_model(model, chatml, tmp_path):
    assert choose_template(model).name == "story"
    assert choose_template(chatml).name == "model" and choose_template(chatml).stop == ("<|im_end|>",)
    folder = write_model(tmp_path / "DialoGPT-tiny")
    assert choose_template(load(str(folder))).name == "dialogpt"
    folder = write_model(tmp_path / "talk", task_specific_params={"conversational": {"max_length": 1000}})
    talker = load(str(folder))
    assert choose_template(talker).name == "dialogpt"
    assert choose_template(replace(talker, name="somebody/on-the-hub")).name == "dialogpt"
    assert choose_template(chatml, "plain").name == "plain"
    with pytest.raises(TemplateError, match="has no chat template"):
        choose_template(model, "model")
    with pytest.raises(OptionError, match="no template 'x'"):
        choose_template(model, "x")


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for m in messages %}{{ messages.append(m) }}{% endfor %}",
        "{{ raise_exception('no system text') }}",
        "{% for",
        "{% for i in range(10**9) %}{% endfor %}",
    ],
)
def test_a_template_can_do_nothing_but_write(tmp_path, template):
    with pytest.raises(TemplateError):
        choose_template(load(str(write_model(tmp_path / "m", template=template)))).write(MESSAGES, True)


def test_a_template_that_refuses_the_sample_can_still_be_used(tmp_path):
    needs_system = "{% if messages[0].role != 'system' %}{{ raise_exception('no system text') }}{% endif %}" + CHATML
    only_one = "{% if messages | length != 1 %}{{ raise_exception('one turn only') }}{% endif %}" + CHATML
    newest_only = "{{ messages[-1].content if messages[-1].role == 'user' }}<end>"
    stops = {needs_system: ("<|im_end|>",), only_one: (), newest_only: ()}
    for number, (source, stop) in enumerate(stops.items()):
        folder = write_model(tmp_path / str(number), template=source)
        assert choose_template(load(str(folder))).stop == stop
        ran = chat(folder, "hi\n", *(("--system", "S") if source == needs_system else ()))
        assert ran.exit_code == 0, ran.output


def test_how_turns_are_written(model):
    turns = [("user", "Hello"), ("assistant", " Hi."), ("user", "Bye")]
    messages = [{"role": role, "content": content} for role, content in turns]
    assert choose_template(model, "dialogpt").write(messages, True) == f"Hello{END} Hi.{END}Bye{END}"
    plain = choose_template(model, "plain").write([{"role": "system", "content": "A talk."}, *messages], True)
    assert plain == "A talk.\nUser: Hello\nAssistant: Hi.\nUser: Bye\nAssistant:"
    assert choose_template(model, "story").write(messages, True) == "Hello Hi.\n\nBye"


ANSWERS = {
    "plain": " Yes {}.\nUser: I",
    "dialogpt": "Yes {}." + END,
    "model": "Yes {}.<|im_end|>\n",
    "story": " Yes {}.",
}


@pytest.mark.parametrize("template", ANSWERS)
def test_ten_turns_process_each_token_once(tmp_path, template):
    model = load(str(write_model(tmp_path / "long", n_positions=1024, template=CHATML)))
    talk = conversation(model, template, max_tokens=7 if template == "story" else 40, ignore_eos=False)
    messages = []
    for number in range(10):
        scripted(model, talk, ANSWERS[template].format(number))
        answer = said(talk.say(f"Hello {number}"))
        assert answer.strip() == f"Yes {number}."
        messages += [{"role": "user", "content": f"Hello {number}"}, {"role": "assistant", "content": answer}]
        # The end mark or speaker's name that the model wrote itself stays where it is part of the text.
        assert talk.session.computed == len(talk.session.tokens) - 1
    said(talk.say("The end"))
    text = choose_template(model, template).write(messages, False)
    assert model.tokenizer.decode(talk.session.tokens).startswith(text)


def test_undo_and_the_same_words_give_the_same_answer(model):
    talk = conversation(model, temperature=1.5, top_k=None)
    first = [said(talk.say(words)) for words in ("One", "Two", "Three")]
    before = talk.session.computed
    tokens = list(talk.session.tokens)
    assert talk.undo().user == "Three"
    assert said(talk.say("Three")) == first[2]
    assert talk.session.tokens == tokens
    assert talk.session.computed - before == len("\n\nThree") + 6  # the newest token before it, and all but the last
    for _ in range(3):
        talk.undo()
    assert talk.session.tokens == [] and talk.session.cache_length == 0
    assert [said(talk.say(words)) for words in ("One", "Two", "Three")] == first
    with pytest.raises(OptionError, match="nothing to undo"):
        conversation(model).undo()


def test_retry_gives_another_answer_and_undo_the_first_one_again(model):
    talk = conversation(model, temperature=1.5, top_k=None)
    first = said(talk.say("One"))
    answers = [said(talk.retry()) for _ in range(3)]
    assert len({first, *answers}) == 4 and len(talk.turns) == 1
    talk.undo()
    assert said(talk.say("One")) == first


def test_a_refused_retry_or_edit_leaves_the_turn(model):
    talk = conversation(model, temperature=1.5, top_k=None)
    for words in ("One", "Two"):
        said(talk.say(words))
    next_answer = said(talk.say("Three"))
    talk.undo()
    answers, tokens, points = (
        [turn.answer for turn in talk.turns],
        list(talk.session.tokens),
        [*talk.session.slide_points],
    )
    nothing = lambda tokens, logits: logits - float("inf")  # noqa: E731
    bias = {model.config.vocab_size: 1.0}  # refused before the answer begins; the processor, at its first step
    for changes in ({"logit_bias": bias}, {"logits_processors": [nothing]}):
        for again in (talk.retry, lambda: talk.edit("Other"), lambda: talk.say("Other")):
            good, talk.request = talk.request, talk.request.changed(**changes)
            with pytest.raises(MlxgenError):
                said(again())
            talk.request = good
            assert [turn.answer for turn in talk.turns] == answers
            assert talk.session.tokens == tokens and talk.session.slide_points == points
    assert said(talk.say("Three")) == next_answer
    assert said(talk.edit("Four")) == said(talk.edit("Four")) and len(talk.turns) == 3


def test_an_edit_that_does_not_fit_leaves_the_turn(model):
    talk = conversation(model)
    talk.session = Session(model)
    said(talk.say("hi"))
    with pytest.raises(MlxgenError, match="128 positions"):
        talk.edit("x" * 200)
    assert [turn.user for turn in talk.turns] == ["hi"] and talk.turns[0].answer


def test_an_answer_left_early_is_kept(model):
    talk = conversation(model, "plain", max_tokens=30)
    steps = talk.say("Hello")
    got = said(itertools.islice(steps, 4))
    steps.close()
    assert talk.turns[-1].answer == got and talk.turns[-1].finish_reason == "interrupted"
    said(talk.say("And?"))
    assert f"Assistant:{got}\nUser: And?" in model.tokenizer.decode(talk.session.tokens)


def test_a_long_talk_slides_by_turns_and_keeps_its_beginning(model):
    talk = conversation(model, "dialogpt", system="Be kind.", max_tokens=8)
    for number in range(40):
        said(talk.say(f"Line {number}"))
        session = talk.session
        assert session.cache_length <= 128
        if session.slide:
            assert session.slide.start in [turn.start for turn in talk.turns]
            assert session.slide.keep == talk.turns[1].start
            assert model.tokenizer.decode(session.tokens[: session.slide.keep]).startswith(f"Be kind.{END}Line 0{END}")
            assert talk.unread and talk.unread[0] == 2
    assert talk.session.slides > 5
    said(talk.say("x" * 500))  # longer than the table by itself
    assert len(talk.turns) == 41


def test_undo_goes_back_across_a_slide(model):
    talk = conversation(model, "dialogpt", max_tokens=8, temperature=0)
    answers = [said(talk.say(f"Line {number}")) for number in range(20)]
    for _ in range(12):
        talk.undo()
    assert [said(talk.say(f"Line {number}")) for number in range(8, 20)] == answers[8:]


def test_where_the_context_ends_the_turn_says_so(model):
    talk = conversation(model, max_tokens=500)
    talk.session = Session(model)
    said(talk.say("Hello"))
    assert talk.turns[-1].finish_reason == "context" and len(talk.session.tokens) == 128
    with pytest.raises(ValueError, match="128 positions"):
        talk.say("More")
    assert len(talk.turns) == 1 and len(talk.session.tokens) == 128


def test_the_system_text_can_change(model):
    talk = conversation(model, "plain", system="Old.")
    said(talk.say("Hello"))
    talk.system = "New."
    said(talk.say("Again"))
    assert model.tokenizer.decode(talk.session.tokens).startswith("New.\nUser: Hello\nAssistant:")
    assert model.tokenizer.decode(talk.session.tokens[: talk.turns[1].start]).endswith(talk.turns[0].answer)


def test_a_template_that_writes_past_turns_anew_keeps_them(tmp_path):
    counts = "{{ messages | length }}:{% for m in messages %}{{ m.content }}{% endfor %}"
    model = load(str(write_model(tmp_path / "m", template=counts)))
    talk = conversation(model, max_tokens=3)
    for words in ("A", "B", "C"):
        said(talk.say(words))
    one, two, three = (turn.answer for turn in talk.turns)
    assert model.tokenizer.decode(talk.session.tokens) == f"5:A{one}B{two}C{three}"
    assert said(talk.retry()) and [turn.user for turn in talk.turns] == ["A", "B", "C"]
    talk.undo()
    assert said(talk.say("C")) == three
    for _ in range(3):
        talk.undo()
    assert said(talk.say("A")) == one


def test_a_saved_talk_goes_on_as_if_it_had_never_stopped(model, chatml, tmp_path):
    talk, other = conversation(model, system="S"), conversation(model, "plain")
    for words in ("One", "Two"):
        said(talk.say(words))
    path = talk.save(tmp_path / "talk")
    other.load(path)
    assert (other.template.name, other.system, other.turns) == ("story", "S", talk.turns)
    before = other.session.computed
    assert said(other.say("Three")) == said(talk.say("Three"))
    assert other.session.computed - before == len("\n\nThree") + 6
    other.undo(), talk.undo()
    assert said(other.retry()) == said(talk.retry())
    with pytest.raises(SessionFileError, match="no conversation"):
        talk.load(talk.session.save(tmp_path / "bare"))
    assert len(talk.turns) == 2
    # The same weights with another tokenizer setting: what was computed is the same.
    conversation(chatml).load(path)


def chat(folder: Path, lines: str, *options: str):
    return CliRunner().invoke(main, ["chat", "-m", str(folder), "--seed", "1", "-n", "5", *options], input=lines)


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
