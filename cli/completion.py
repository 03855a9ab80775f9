"""What the shell completes: names of models, files and folders."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Folders, and the names of the models on this machine and the aliases."""
    return [_path("dir", incomplete), *_named(incomplete)]


def complete_source(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """What can be converted: files and folders, and names of models once they have begun (bash shows names alone)."""
    return [_path("file", incomplete), *(_named(incomplete) if incomplete else [])]


def complete_converted(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """The names of converted models."""
    return _named(incomplete, "converted")


def complete_file(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    return [_path("file", incomplete)]


def complete_folder(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    return [_path("dir", incomplete)]


def _named(incomplete: str, kind: str | None = None) -> list[CompletionItem[str]]:
    """The names that begin so, with what each of them is; of one kind if it is given."""
    from click.shell_completion import CompletionItem

    from mlxgen.weights.hub.known_names import known_names

    found = known_names().items()
    return [
        CompletionItem(name, help=what) for name, what in found if name.startswith(incomplete) and kind in (None, what)
    ]


def _path(kind: str, incomplete: str) -> CompletionItem[str]:
    """Lets the shell complete a path. It comes first, since bash drops what came before it."""
    from click.shell_completion import CompletionItem

    # click's script for zsh does not read this value, but loses count of the lines after it if it is empty.
    nothing = "." if os.environ.get("_MLXGEN_COMPLETE", "").startswith("zsh") else ""
    return CompletionItem(incomplete or nothing, type=kind)
