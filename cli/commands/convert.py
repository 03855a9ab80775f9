"""`mlxgen convert`: a GPT-2 checkpoint of any origin becomes an MLX folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlxgen.cli.output import say, size, write, write_json
from mlxgen.cli.progress import progress_bar

if TYPE_CHECKING:
    from mlxgen.weights.conversion.result import Conversion


@click.command()
@click.argument("source")
@click.option("-o", "--output", metavar="DIR", help="The folder to write.  [default: weights/NAME]")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    help="Type of the weights; as stored without it.",
)
@click.option("-q", "--quantize", type=click.Choice(["4", "8"]), help="Pack the weights into so many bits.")
@click.option(
    "--group-size",
    type=click.Choice(["32", "64", "128"]),
    help="How many weights share a scale.  [default: 64]",
)
@click.option("--keep-head", is_flag=True, help="Leave the embeddings and the output head unquantized.")
@click.option("-d", "--dequantize", is_flag=True, help="Unpack a quantized source.")
@click.option("--revision", help="Branch, tag or commit of a model on the hub.")
@click.option("--config", metavar="FILE", help="A config.json for weights that come without one.")
@click.option(
    "--vocab",
    metavar="PATH",
    help='The tokenizer of weights that come without: a JSON file {"character": id, ...}, a tokenizer.json, a folder, '
    "or a hub id.",
)
@click.option("--force", is_flag=True, help="Replace the output folder if there is a model in it.")
@click.option("--verify", is_flag=True, help="Compare logits and perplexity of a text before and after.")
@click.option("--upload", "repo", metavar="REPO", help="Then put the folder on the hub as REPO (owner/name).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of the summary.")
@click.option("--quiet", is_flag=True, help="No summary, no progress bar.")
def convert(
    source: str,
    quantize: str | None,
    group_size: str | None,
    repo: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Make a folder that mlxgen and mlx-lm open of a GPT-2 checkpoint.

    SOURCE is a hub id (owner/name), an alias such as gpt2, a model folder (safetensors or PyTorch weights, also one
    already converted), or a file: nanoGPT's ckpt.pt, minGPT's state dict, or any other GPT-2 state dict. Which it is
    is found out by looking. PyTorch files need pip install "mlxgen[torch]", and are never run as code.

    --json prints one object with these keys: source, kind, folder, n_parameters, bytes_before, bytes_after, dtype,
    quantization (bits, group_size; or null), cache_bytes_per_token, tokenizer, warnings, verification (tokens,
    largest_difference, perplexity_before, perplexity_after; or null), uploaded (an address, or null).
    """
    from mlxgen.weights.conversion import converter
    from mlxgen.weights.conversion.weight_format import GROUP_SIZE
    from mlxgen.weights.hub.upload import upload_folder

    bar = progress_bar("Converting", quiet=quiet)
    warn = bar.say if bar else say
    done = converter.convert(
        source,
        quantize=None if quantize is None else int(quantize),
        group_size=GROUP_SIZE if group_size is None else int(group_size),
        progress=bar,
        warn=lambda warning: warn(f"Warning: {warning}"),
        **options,
    )
    address = None if repo is None else upload_folder(done.folder, repo)
    if as_json:
        write_json({**done.as_json(), "uploaded": address})
    elif not quiet:
        write("".join(f"{name:<12}{value}\n" for name, value in _summary(done, address)))


def _summary(done: Conversion, address: str | None) -> list[tuple[str, str]]:
    q, v = done.quantization, done.verification
    packed = f", {q.bits} bits in groups of {q.group_size}" if q else ""
    lines = [
        ("source", f"{done.source} ({done.kind})"),
        ("folder", str(done.folder)),
        ("parameters", f"{done.n_parameters:,}"),
        ("weights", f"{size(done.bytes_before)} before, {size(done.bytes_after)} after ({done.dtype}{packed})"),
        ("cache", f"{done.cache_bytes_per_token:,} bytes a token"),
        ("tokenizer", done.tokenizer),
    ]
    if done.assumed_activation is not None:
        lines.append(("activation", f"{done.assumed_activation} is assumed (--config FILE can name another)"))
    if v is not None:
        lines.append(("logits", f"differ by at most {v.largest_difference:.3g} (a text of {v.tokens} tokens)"))
        lines.append(("perplexity", f"{v.perplexity_before:.3f} before, {v.perplexity_after:.3f} after"))
    if address is not None:
        lines.append(("uploaded", address))
    return lines
