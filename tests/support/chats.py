"""Models that chat: small, random, with or without a template of their own."""

from pathlib import Path

from .models import letter_tokenizer, tiny_gpt2

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_model(folder: Path, *, template: str | None = None, **changes) -> Path:
    """A small model whose tokens are single bytes."""
    sizes = {"n_positions": 128, "n_embd": 16, "n_layer": 1, "n_head": 2} | changes
    return tiny_gpt2(7, letter_tokenizer(), **sizes).write(folder, chat_template=template)
