"""Conversations: what is processed, undo and retry, sliding by turns, saving."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, replace

import mlx.core as mx
import pytest

from mlxgen import load
from mlxgen.chat.conversation import Conversation
from mlxgen.chat.templates import choose_template
from mlxgen.errors import MlxgenError, OptionError
from mlxgen.generation import session_file
from mlxgen.generation.request import check_options
from mlxgen.generation.session import Session
from mlxgen.generation.session_file import SessionFileError
from mlxgen.model import Model

from ..support.chats import CHATML, write_model
from ..support.models import END


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


@pytest.mark.parametrize(
    "change",
    [
        {"turns": [{"answer": None}]},
        {"turns": [{"answer": 5}]},
        {"turns": [{"start": -1}]},
        {"turns": [{"processed": True}]},
        {"turns": [{"first": 10**6}]},
        {"turns": [{"text": ["a"]}]},
        {"turns": [{"seed": 1.5}]},
        {"turns": [{"unknown": 1}]},
        {"turns": [None]},
        {"turns": 5},
        {"turns": None},
        {"template": ["plain"]},
        {"template": None},
        {"system": 3},
        {"seed": "7"},
        {"seed": -1},
    ],
)
def test_a_crafted_conversation_is_refused_and_nothing_changes(model, tmp_path, change):
    talk = conversation(model)
    said(talk.say("One"))
    turn = asdict(talk.turns[0])
    good = {"template": "story", "system": "", "seed": 1, "turns": [turn]}
    bad = good | change
    if isinstance(change.get("turns"), list):
        bad["turns"] = [turn | entries if entries else entries for entries in change["turns"]]
    talk.load(session_file.write(talk.session.state, model, tmp_path / "good", {"chat": good}))
    before = [replace(one) for one in talk.turns]
    with pytest.raises(SessionFileError, match="conversation") as caught:
        talk.load(session_file.write(talk.session.state, model, tmp_path / "bad", {"chat": bad}))
    assert str(caught.value).isprintable()
    assert talk.turns == before and said(talk.say("Two"))


def test_an_error_of_a_library_leaves_the_conversation_as_it_was(model):
    talk = conversation(model)
    said(talk.say("One"))
    before, tokens = [replace(turn) for turn in talk.turns], list(talk.session.tokens)

    def fail(tokens, logits):
        raise RuntimeError("[malloc] Unable to allocate")

    asked, talk.request = talk.request, talk.request.changed(logits_processors=[fail])
    for begin in (lambda: talk.say("Two"), talk.retry, lambda: talk.edit("Two")):
        with pytest.raises(RuntimeError):
            said(begin())
        assert talk.turns == before and talk.session.tokens == tokens
    talk.request = asked
    assert said(talk.say("Two"))
