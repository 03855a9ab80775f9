"""Chat templates: how a conversation is written down as one text for the model to continue."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict

from mlxgen.errors import MlxgenError, OptionError, reason_of

if TYPE_CHECKING:
    from mlxgen.model import Model  # the names of the templates are read for --help, which loads no MLX

USER, ASSISTANT = "User:", "Assistant:"  # the speakers of the plain template
PARAGRAPH = "\n\n"
MARKER = "the-answer-stands-here"

# Each template's name, and what a conversation is in it.
TEMPLATES = {
    "model": "the model's own chat template",
    "dialogpt": "a dialogue in DialoGPT's format",
    "plain": "a dialogue of named speakers",
    "story": "a story: write a line and the model continues; an empty line lets it write more",
}
NAMES = ("auto", *TEMPLATES)


class Message(TypedDict):
    """What one side said. role: "system", "user" or "assistant"."""

    role: str
    content: str


class TemplateError(MlxgenError):
    """A chat template that cannot be used."""


@dataclass(frozen=True, slots=True)
class Template:
    """A way to write a conversation down.

    write: the messages as one text, and, where `prompt` is set, up to the place at which the model has to go on.
    stop: texts that end the model's answer, besides its end tokens. speaks: whether the two sides take turns (in a
    story they write one text).
    """

    name: str
    write: Callable[[Sequence[Message], bool], str]
    stop: tuple[str, ...] = ()
    speaks: bool = True


def choose_template(model: Model, name: str = "auto") -> Template:
    """The template of that name, or the one that suits the model.

    auto: the tokenizer's own chat_template where it has one ("model"), DialoGPT's for a DialoGPT, and "story" for
    every other. Raises OptionError for an unknown name and TemplateError where the model has none.
    """
    if name == "auto":
        name = "model" if model.tokenizer.chat_template else "dialogpt" if _is_dialogpt(model) else "story"
    if name == "model":
        return _own(model)
    if name == "dialogpt":
        end = _end_text(model)
        if not end:
            raise TemplateError(
                "the dialogpt template joins turns by the end token, which this model has not; take plain"
            )
        return Template("dialogpt", lambda messages, prompt: "".join(m["content"] + end for m in messages))
    if name == "plain":
        return Template("plain", _plain, stop=(f"\n{USER}", f"\n{ASSISTANT}"))
    if name == "story":
        return Template("story", _story, speaks=False)
    raise OptionError(f"there is no template {name!r}; choose one of {', '.join(NAMES)}")


def _plain(messages: Sequence[Message], prompt: bool) -> str:
    """Named speakers, a line each; an answer keeps the space that the model put before it."""
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
    """One text; each line of the user begins a paragraph, and an empty one lets the model go on where it was."""
    text = ""
    for message in messages:
        content = message["content"]
        new_paragraph = message["role"] != "assistant" and text and content
        text = (text.rstrip("\n") + PARAGRAPH if new_paragraph else text) + content
    return text


def _own(model: Model) -> Template:
    """The tokenizer's chat_template, run in jinja2's sandbox: it comes from whoever made the checkpoint."""
    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    source = model.tokenizer.chat_template
    if not source:
        raise TemplateError(f"{model.name} has no chat template of its own; take --template plain or story")

    def fail(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.globals["raise_exception"] = fail
    environment.globals["strftime_now"] = _now
    environment.filters["tojson"] = _to_json  # jinja2's own escapes HTML
    special = {"bos_token": _text_of(model, model.tokenizer.bos_token_id), "eos_token": _end_text(model)}

    try:
        template = environment.from_string(source)
    except (jinja2.TemplateError, MemoryError, RecursionError) as error:
        raise TemplateError(f"the model's chat template is broken ({error}); take --template plain or story") from None

    def write(messages: Sequence[Message], prompt: bool) -> str:
        try:
            # A copy: whatever the template does to it stays there.
            copies = [dict(message) for message in messages]
            return template.render(messages=copies, add_generation_prompt=prompt, **special)
        except (MemoryError, RecursionError, Exception) as error:
            reason = reason_of(error)
            raise TemplateError(f"the model's chat template refuses this conversation: {reason}") from None

    return Template("model", write, stop=_turn_end(write))


def _turn_end(write: Callable[[Sequence[Message], bool], str]) -> tuple[str, ...]:
    """What the template writes after an answer: where the model writes that itself, its turn is over.

    Nothing where that cannot be told: a template may refuse a conversation, or leave old answers out.
    """
    said: list[Message] = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": MARKER}]
    for messages in (said, [Message(role="system", content="Hello"), *said]):
        with suppress(TemplateError):
            _, found, after = write(messages, False).rpartition(MARKER)
            return (after.strip(),) if found and after.strip() else ()
    return ()


def _is_dialogpt(model: Model) -> bool:
    """By its name, or by the settings for conversations that its config.json carries."""
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
