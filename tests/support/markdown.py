"""What a Markdown page holds besides its sentences: code blocks, commands and what they print, code spans, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

SHELL = ("sh", "console", "")  # languages of blocks that hold commands; an indented block has none


@dataclass(frozen=True)
class Block:
    """A code block. name: the second word after the fence, the file that the block is the content of."""

    line: int
    language: str
    name: str
    text: str

    @property
    def commands(self) -> list[tuple[str, str | None]]:
        """Its shell commands, each with what the page shows of its output (None: nothing is shown).

        In a `console` block a command begins with "$ ", and the lines after it are its output.
        """
        if self.language not in SHELL:
            return []
        if self.language != "console":
            return [(line, None) for line in self.text.replace("\\\n", " ").splitlines() if line]
        parts = re.split(r"^\$ (.*)\n", self.text, flags=re.MULTILINE)[1:]
        return list(zip(parts[::2], parts[1::2], strict=True))


@dataclass(frozen=True)
class Page:
    """One Markdown file."""

    path: Path

    @property
    def blocks(self) -> list[Block]:
        """Its code blocks, fenced or indented, in order."""
        found = []
        for token in MarkdownIt().parse(self.path.read_text()):
            if token.type in ("fence", "code_block"):
                language, _, name = token.info.partition(" ")
                found.append(Block(token.map[0] + 1 if token.map else 0, language, name, token.content))
        return found

    @property
    def links(self) -> list[str]:
        """Targets of its links and pictures."""
        targets = [token.attrs.get("href") or token.attrs.get("src") for token in self._inline()]
        return [str(target) for target in targets if target]

    @property
    def code_spans(self) -> list[str]:
        """The pieces of code in its sentences and tables."""
        return [token.content for token in self._inline() if token.type == "code_inline"]

    @property
    def anchors(self) -> set[str]:
        """What a link to one of its headings ends in, as GitHub makes it."""
        headings = re.findall(r"^#+ (.+)$", self.path.read_text(), re.MULTILINE)
        return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}

    def _inline(self) -> Iterator[object]:
        for token in MarkdownIt().enable("table").parse(self.path.read_text()):
            yield from token.children or ()
