"""Chat templates: what they write, which one is chosen, and what they cannot do."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from mlxgen import load
from mlxgen.chat.templates import TemplateError, choose_template
from mlxgen.cli.main import main
from mlxgen.errors import OptionError

from ..support.chats import CHATML, write_model
from ..support.models import END

MESSAGES = [{"role": "user", "content": "Hello"}]


EOS_JOINED = "{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}"


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
    command = ["chat", "-n", "5", "--seed", "1"]
    stops = {needs_system: ("<|im_end|>",), only_one: (), newest_only: ()}
    for number, (source, stop) in enumerate(stops.items()):
        folder = write_model(tmp_path / str(number), template=source)
        assert choose_template(load(str(folder))).stop == stop
        system = ["--system", "S"] if source == needs_system else []
        ran = CliRunner().invoke(main, [*command, "-m", str(folder), *system], input="hi\n")
        assert ran.exit_code == 0, ran.output


def test_how_turns_are_written(model):
    turns = [("user", "Hello"), ("assistant", " Hi."), ("user", "Bye")]
    messages = [{"role": role, "content": content} for role, content in turns]
    assert choose_template(model, "dialogpt").write(messages, True) == f"Hello{END} Hi.{END}Bye{END}"
    plain = choose_template(model, "plain").write([{"role": "system", "content": "A talk."}, *messages], True)
    assert plain == "A talk.\nUser: Hello\nAssistant: Hi.\nUser: Bye\nAssistant:"
    assert choose_template(model, "story").write(messages, True) == "Hello Hi.\n\nBye"
