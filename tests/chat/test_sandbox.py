"""Chat templates that try to hang or to fill the memory are refused; published kinds of templates write as before."""

import pytest
from jinja2.exceptions import TemplateError as JinjaError

from mlxgen import load
from mlxgen.chat import sandbox
from mlxgen.chat.sandbox import Sandbox, TooMuchWork
from mlxgen.chat.templates import TemplateError, choose_template

from ..support.chats import CHATML, write_model

R = "range(100000)"
DOUBLED = "{%% set ns = namespace(a=%s) %%}{%% for i in range(99) %%}{%% set ns.a = %s %%}{%% endfor %%}{{ ns.a }}"
BIG = "{% set b = 'a' * 900000 %}"


def loops(body: str) -> str:
    return f"{{% for i in {R} %}}{{% for j in {R} %}}{body}{{% endfor %}}{{% endfor %}}"


HOSTILE = {
    "loops": loops(""),
    "a loop's condition": f"{{% for i in {R} %}}{{% for j in {R} if false %}}{{% endfor %}}{{% endfor %}}",
    "output": loops("text"),
    "output in a block": "{% set x %}" + loops("text") + "{% endset %}",
    "output in a macro": BIG + "{% macro f() %}" + loops("{{ b[1:] }}") + "{% endmacro %}{{ f() }}",
    "calls": "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(90) }}",
    "endless calls": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "endless loop in a loop": "{% for i in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "a repeated text": "{{ 'a' * 10 ** 10 }}",
    "a repeated list": "{{ ([1] * 10 ** 10) | length }}",
    "a repeated list of long texts": BIG + "{{ ([b] * 10000) | join }}",
    "a doubled text": DOUBLED % ("'a'", "ns.a ~ ns.a"),
    "a doubled sum": DOUBLED % ("'a'", "ns.a + ns.a"),
    "a doubled list": DOUBLED % ("[]", "[ns.a, ns.a]"),
    "a doubled tuple": DOUBLED % ("()", "(ns.a, ns.a)"),
    "a doubled dict": DOUBLED % ("{}", "dict(a=ns.a, b={'a': ns.a})"),
    "a doubled namespace": DOUBLED % ("1", "namespace(a=ns.a, b=ns.a)"),
    "a doubled number": DOUBLED % ("3", "ns.a * ns.a"),
    "a power": "{{ 10 ** (10 ** 9) }}",
    "a wide filter": "{{ 'a' | center(10 ** 10) }}",
    "a wide method": "{{ 'a'.ljust(10 ** 10) }}",
    "wide bytes": "{{ (1).to_bytes(10 ** 10, 'big') }}",
    "a wide format": "{{ '%10000000000d' % 1 }}",
    "a wide format by filter": "{{ '%*d' | format(10 ** 10, 1) }}",
    "a wide format by method": "{{ '{:>10000000000}'.format(1) }}",
    "a wide format by argument": "{{ '{:{w}}'.format(1, w='10000000000') }}",
    "a wide mapped format": "{{ '{a:>10000000000}'.format_map({'a': 1}) }}",
    "a long separator": BIG + "{{ b.join(b) }}",
    "a long separator of a range": BIG + f"{{{{ {R} | join(b) }}}}",
    "a long separator of a generator": BIG + f"{{{{ {R} | map('string') | join(b) }}}}",
    "a long replacement": BIG + "{{ b | replace('a', b) }}",
    "a long translation": BIG + "{{ b.translate({97: b}) }}",
    "tabs": "{{ ('\\t' * 9000).expandtabs(90000) }}",
    "a wide indentation": "{{ [[1]] | tojson(indent=10 ** 10) }}",
    "lists of lists": f"{{{{ ([{R} | list] * 9) | map('list') | list }}}}",
    "comparisons": BIG + loops("{{ 'b' in b }}"),
    "slices": BIG + loops("{% if b[1:] %}{% endif %}"),
    "a slow filter": "{{ ('<!--' * 100000) | striptags }}",
    "a long source": "{{ 1" + " + 1" * 100_000 + " }}",
    "nested loops": "{% for i in [1] %}" * 30 + "{% endfor %}" * 30,
    "nested brackets": "{{ " + "(" * 5000 + ")" * 5000 + " }}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_template_is_refused(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SECONDS", 0.3)
    own = Sandbox()
    with pytest.raises((TooMuchWork, JinjaError, RecursionError, SyntaxError)):
        own.write(own.from_source(source), messages=[])


def test_work_is_counted_and_needs_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SECONDS", 1e6)
    own = Sandbox()
    for name in ("loops", "output", "output in a macro"):
        with pytest.raises((TooMuchWork, RecursionError)):
            own.write(own.from_source(HOSTILE[name]), messages=[])


def test_the_refusal_is_one_line_and_each_text_has_its_own_budget(tmp_path) -> None:
    source = CHATML + "{% if messages | length == 3 %}" + HOSTILE["loops"] + "{% endif %}"
    template = choose_template(load(str(write_model(tmp_path / "m", template=source))))
    messages = [{"role": "user", "content": "Hello"}] * 3
    for _ in range(2):
        with pytest.raises(TemplateError, match=r"cannot write this conversation: it takes too much work$"):
            template.write(messages, True)
        assert template.write(messages[:2], True).count("Hello") == 2


# In the manner of Llama 3, Qwen 3, Mistral and Gemma.
PUBLISHED = [
    "{{- bos_token }}{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start|>' +"
    " message['role'] + '<|end|>\n\n' + message['content'] | trim + '<|eot|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}",
    "{%- set ns = namespace(multi=true, last=messages | length - 1) %}{%- for message in messages[::-1] %}"
    "{%- set index = (messages | length - 1) - loop.index0 %}{%- if ns.multi and message.role == 'user' and"
    " message.content is string and not (message.content.startswith('<t>') and message.content.endswith('</t>')) %}"
    "{%- set ns.multi = false %}{%- set ns.last = index %}{%- endif %}{%- endfor %}{%- for message in messages %}"
    "{%- if message.role == 'assistant' %}{%- set content = message.content.split('</think>')[-1].lstrip('\n') %}"
    "{{- '<a>' ~ content ~ loop.index0 ~ (loop.last | string) }}{%- else %}{{- '<' + message.role + '>' +"
    " message.content.replace('e', 'EE') + ns.last | string }}{%- endif %}{%- endfor %}",
    "{%- macro part(text, n=2) %}[{{ text | upper | indent(n) }} {{ caller() if caller else '' }}]{% endmacro %}"
    "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}{{ users | length }}"
    "{% for m in messages %}{{ part(m.content) }}{% call part('x', n=1) %}{{ '%s:%d' | format(m.role, loop.index) }}"
    "{% endcall %}{% if loop.index > 5 %}{% continue %}{% endif %}"
    "{{ '{} {:>4}'.format(m.role, loop.length) }}{% endfor %}"
    "{{ messages | map(attribute='role') | unique | join(', ') }}",
    "{% for role, group in messages | groupby('role') %}{{ role }}: {% for m in group %}{{ m | tojson(indent=2) }}"
    "{{ loop.cycle('a', 'b') }}{% else %}none{% endfor %}{% endfor %}{% for k, v in messages[0].items() %}{{ k, v }}"
    "{% endfor %}{{ [1, (2, 3), {'a': none}] }}{{ range(3) | list }}{{ 7 // 2 ** 2 % 5 * 'ab' }}"
    "{% for x in [[1, [2]], [3]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}"
    "{{ nothing is defined }}",
]


@pytest.mark.parametrize("source", PUBLISHED)
def test_other_templates_write_what_transformers_writes(source, tmp_path, monkeypatch) -> None:
    from transformers import AutoTokenizer

    monkeypatch.setattr(sandbox, "SECONDS", 1e6)
    folder = write_model(tmp_path / "m", template=source)
    theirs, ours = AutoTokenizer.from_pretrained(folder), choose_template(load(str(folder)), "model")
    roles = ["system", *["user", "assistant"] * 150]
    talk = [{"role": role, "content": f"<think>é\n{at}</think>\n\nThe text "} for at, role in enumerate(roles)]
    for length in (1, 2, 300):
        expected = theirs.apply_chat_template(talk[:length], tokenize=False)
        assert ours.write(talk[:length], False) == expected
