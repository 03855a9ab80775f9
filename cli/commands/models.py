"""`mlxgen models`: the models on this machine, and the aliases that can be downloaded."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from mlxgen.cli.completion import complete_converted
from mlxgen.cli.output import say, size, write, write_json
from mlxgen.errors import printable

if TYPE_CHECKING:
    from mlxgen.weights.files.origin import Origin

MOST = 300  # characters of a name


@click.group(invoke_without_command=True, subcommand_metavar="[rm NAME]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line instead of text.")
@click.pass_context
def models(ctx: click.Context, /, as_json: bool) -> None:
    """List the GPT-2 models on this machine with their size and origin, and the aliases that can be downloaded.

    Listed are the bundled model, those that `mlxgen convert` wrote to its own folder, and those in the hub's cache.
    The folder is $MLXGEN_HOME/models, by default in ~/Library/Application Support/mlxgen on macOS and in
    ~/.local/share/mlxgen elsewhere.

    --json prints one object per line with these keys: name, kind (bundled, converted, cached, alias), path, bytes (on
    disk), n_parameters, quantized_bits, needs_convert, repo (of an alias), origin (what a converted model was made
    from: kind, source, revision). Keys that do not apply are null.
    """
    if ctx.invoked_subcommand is not None:
        return
    from mlxgen.weights import ALIASES
    from mlxgen.weights.local_models import list_local_models

    here = list_local_models()
    cached = {model.name for model in here if model.kind == "cached"}
    absent = {alias: repo for alias, repo in ALIASES.items() if repo not in cached}
    if as_json:
        for model in here:
            bits = model.config.quantization.bits if model.config.quantization else None
            _object(
                name=model.name,
                kind=model.kind,
                path=str(model.path),
                bytes=model.n_bytes,
                n_parameters=model.config.n_parameters,
                quantized_bits=bits,
                needs_convert=model.pickled,
                origin=asdict(model.origin) if model.origin else None,
            )
        for alias, repo in absent.items():
            _object(name=alias, kind="alias", repo=repo)
        return
    rows = []
    for model in here:
        quantization = model.config.quantization
        notes = [f"{model.config.n_parameters:,} parameters"]
        notes += [f"{quantization.bits} bits"] if quantization else []
        notes += [f"alias {alias}" for alias in model.aliases]
        notes += [_made_from(model.origin)] if model.origin else []
        notes += [f"PyTorch weights: mlxgen convert {printable(model.name, MOST)}"] if model.pickled else []
        rows.append((printable(model.name, MOST), model.kind, size(model.n_bytes), ", ".join(notes)))
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for name, kind, n_bytes, note in rows:
        write(f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {n_bytes:>{widths[2]}}  {note}\n")
    if absent:
        write(("\n" if rows else "") + "Downloaded on first use:\n")
        longest = max(map(len, absent))
        for alias, repo in absent.items():
            write(f"  {alias:<{longest}}  {repo}\n")


def _made_from(origin: Origin) -> str:
    """Such as "from openai-community/gpt2 (model folder)"."""
    return f"from {printable(origin.source, MOST)} ({printable(origin.kind, MOST)})"


@models.command()
@click.argument("name", shell_complete=complete_converted)
def rm(name: str) -> None:
    """Remove the converted model NAME from this machine."""
    from mlxgen.weights.local_models import remove_model

    say(f"Removed {remove_model(name)}")


KEYS = ("name", "kind", "path", "bytes", "n_parameters", "quantized_bits", "needs_convert", "repo", "origin")


def _object(**known: object) -> None:
    write_json({key: known.get(key) for key in KEYS})
