"""Chat templates: they write a conversation as one text for the model to continue."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict

from mlxgen.errors import MlxgenError, OptionError, reason_of

if TYPE_CHECKING:
    from mlxgen.model import Model  # --help needs the names of the templates, and must not import MLX

USER, ASSISTANT = "User:", "Assistant:"  # the speakers of the plain template
PARAGRAPH = "\n\n"
MARKER = "the-answer-stands-here"

# template name -> what a conversation looks like in it
TEMPLATES = {
    "model": "the model's own chat template",
    "dialogpt": "a dialogue in DialoGPT's format",
    "plain": "a dialogue of named speakers",
    "story": "a story: write a line and the model continues; an empty line lets it write more",
}
NAMES = ("auto", *TEMPLATES)


class Message(TypedDict):
    """One message. role: "system", "user" or "assistant"."""

    role: str
    content: str


class TemplateError(MlxgenError):
    """A chat template that cannot be used."""


@dataclass(frozen=True, slots=True)
class Template:
    """A format for conversations.

    write: called with (messages, prompt); returns the messages as one text, followed by the beginning of the model's
    turn if prompt is True. stop: texts that end the model's answer, in addition to its end tokens. speaks: whether the
    two sides take turns; in a story they write one text. writes_start: whether it writes the start token itself.
    """

    name: str
    write: Callable[[Sequence[Message], bool], str]
    stop: tuple[str, ...] = ()
    speaks: bool = True
    writes_start: bool = False


def choose_template(model: Model, name: str = "auto") -> Template:
    """The template with the given name.

    "auto" chooses "model" (the tokenizer's chat_template) if the model has one, "dialogpt" for DialoGPT models, and
    otherwise "story". Raises OptionError for an unknown name and TemplateError if the model lacks what it needs.
    """
    if name == "auto":
        name = "model" if model.tokenizer.chat_template else "dialogpt" if _is_dialogpt(model) else "story"
    if name == "model":
        return _own(model)
    if name == "dialogpt":
        end = _end_text(model)
        if not end:
            raise TemplateError(
                "the dialogpt template separates turns by the end token, but this model has none; use --template plain"
            )
        return Template("dialogpt", lambda messages, prompt: "".join(m["content"] + end for m in messages))
    if name == "plain":
        return Template("plain", _plain, stop=(f"\n{USER}", f"\n{ASSISTANT}"))
    if name == "story":
        return Template("story", _story, speaks=False)
    raise OptionError(f"there is no template {name!r}; choose one of {', '.join(NAMES)}")


def _plain(messages: Sequence[Message], prompt: bool) -> str:
    """One line per message, after the speaker's name. An answer keeps the leading space that the model generated."""
    lines = []
    for message in messages:
        content = message["content"]
        if message["role"] == "system":
            lines.append(content + "\n")
        elif message["role"] == "user":
            lines.append(f"{USER} {content}\n")
        else:
            lines.append(f"{ASSISTANT}{content}\n")
    text = "".join(lines)
    return text + ASSISTANT if prompt else text.removesuffix("\n")


def _story(messages: Sequence[Message], prompt: bool) -> str:
    """One text. Each line of the user begins a paragraph; after an empty line the model simply continues."""
    text = ""
    for message in messages:
        content = message["content"]
        new_paragraph = message["role"] != "assistant" and text and content
        text = (text.rstrip("\n") + PARAGRAPH if new_paragraph else text) + content
    return text


def _own(model: Model) -> Template:
    """The tokenizer's chat_template. It is untrusted, so it runs in a sandbox. Raises TemplateError."""
    from jinja2 import TemplateError as Refusal

    from mlxgen.chat.sandbox import Sandbox

    source = model.tokenizer.chat_template
    if not source:
        raise TemplateError(f"{model.name} has no chat template; use --template plain or story")

    def fail(message: str) -> NoReturn:
        raise Refusal(message)

    sandbox = Sandbox()
    sandbox.globals["raise_exception"] = fail
    sandbox.globals["strftime_now"] = _now
    sandbox.add_filter("tojson", _to_json)  # jinja2's filter escapes HTML
    special = {"bos_token": _text_of(model, model.tokenizer.bos_token_id), "eos_token": _end_text(model)}

    try:
        template = sandbox.from_source(source)
    except Exception as error:  # also a SyntaxError, for loops nested too deeply
        reason = reason_of(error)
        raise TemplateError(f"the model's chat template is invalid ({reason}); use --template plain or story") from None

    def write(messages: Sequence[Message], prompt: bool) -> str:
        try:
            # Copies, so that the template cannot change the messages.
            copies = [dict(message) for message in messages]
            return sandbox.write(template, messages=copies, add_generation_prompt=prompt, **special)
        except Exception as error:
            reason = reason_of(error)
            raise TemplateError(f"the model's chat template cannot write this conversation: {reason}") from None

    return Template("model", write, stop=_turn_end(write), writes_start=True)


def _turn_end(write: Callable[[Sequence[Message], bool], str]) -> tuple[str, ...]:
    """The text that the template writes after an answer. If the model generates it, its turn is over.

    Returns () if there is no such text or it cannot be found: a template may reject the test conversation or leave out
    old answers.
    """
    said: list[Message] = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": MARKER}]
    for messages in (said, [Message(role="system", content="Hello"), *said]):
        with suppress(TemplateError):
            _, found, after = write(messages, False).rpartition(MARKER)
            return (after.strip(),) if found and after.strip() else ()
    return ()


def _is_dialogpt(model: Model) -> bool:
    """Whether this is a DialoGPT: by its name, or by the settings for conversations in its config.json."""
    return "dialogpt" in model.name.lower() or model.config.conversational


def _end_text(model: Model) -> str:
    ids = [model.tokenizer.eos_token_id, *sorted(model.end_tokens)]
    return next((_text_of(model, token) for token in ids if token is not None), "")


def _text_of(model: Model, token: int | None) -> str:
    return "" if token is None else model.tokenizer.decode([token])


def _now(form: str) -> str:
    from datetime import datetime

    return datetime.now().strftime(form)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
