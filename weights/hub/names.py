"""The names of models: the bundled one, and the aliases of repositories on the hub."""

from __future__ import annotations

import difflib
from pathlib import Path

BUNDLED = "fairy-tales"
BUNDLED_FOLDER = Path(__file__).parent.parent / "fairy_tales"

ALIASES = {
    **{name: f"openai-community/{name}" for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")},
    "distilgpt2": "distilbert/distilgpt2",
    **{f"dialogpt-{size}": f"microsoft/DialoGPT-{size}" for size in ("small", "medium", "large")},
    **{
        f"cerebras-{size.lower()}": f"cerebras/Cerebras-GPT-{size}"
        for size in ("111M", "256M", "590M", "1.3B", "2.7B", "6.7B", "13B")
    },
    "protgpt2": "nferruz/ProtGPT2",
}


def repository_of(name: str) -> str:
    """The repository that an alias stands for; any other name as it is."""
    return ALIASES.get(name.lower(), name)


def suggestion(name: str) -> str:
    """A hint for a misspelt name, such as " (did you mean gpt2?)"; an empty text if no name is similar."""
    near = difflib.get_close_matches(name.rpartition("/")[2].lower(), [BUNDLED, *ALIASES], n=1)
    return f" (did you mean {near[0]}?)" if near else ""
