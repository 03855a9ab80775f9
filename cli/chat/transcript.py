"""A conversation as text: what /show prints and /export writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxgen.chat.conversation import Conversation

PROMPT = "> "  # before what the user said, as in the input line


def transcript(conversation: Conversation) -> str:
    """The whole conversation, ending with a line break; "" for an empty one. A story is one text without marks."""
    if not conversation.turns:
        return ""
    if not conversation.template.speaks:
        return conversation.text.rstrip("\n") + "\n"
    parts = [conversation.system] if conversation.system else []
    for turn in conversation.turns:
        lines = turn.user.split("\n")
        said = "\n".join(f"{PROMPT}{line}" for line in lines)
        parts.append(f"{said}\n{turn.answer.strip()}")
    return "\n\n".join(parts) + "\n"
