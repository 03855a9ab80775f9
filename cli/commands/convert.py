"""`mlxgen convert`: from a GPT-2 checkpoint of any origin to a folder for MLX or transformers, or to a GGUF file."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from mlxgen.cli.completion import complete_file, complete_source
from mlxgen.cli.options import adapter_option, revision_option
from mlxgen.cli.output import say, size, write, write_json
from mlxgen.cli.progress import progress_bar

if TYPE_CHECKING:
    from mlxgen.weights.conversion.result import Conversion


@click.command()
@click.argument("source", shell_complete=complete_source)
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    shell_complete=complete_file,
    help="Folder or GGUF file to write.  [default: a folder among those that `mlxgen models` lists; a file here]",
)
@click.option(
    "--to",
    type=click.Choice(["mlx", "hf", "gguf"]),
    default="mlx",
    help="Format to write: a folder for MLX, a Hugging Face folder for transformers, or a GGUF file for llama.cpp.  "
    "[default: mlx]",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    help="Type of the weights.  [default: as stored]",
)
@click.option(
    "-q",
    "--quantize",
    type=click.Choice(["4", "8"]),
    help="Quantize the weights to 4 or 8 bits. As in mlx_lm.convert, -q is not --quiet here.",
)
@click.option(
    "--group-size",
    type=click.Choice(["32", "64", "128"]),
    help="Number of weights that share a scale.  [default: 64]",
)
@click.option("--keep-head", is_flag=True, help="Leave the embeddings and the output head unquantized.")
@click.option("-d", "--dequantize", is_flag=True, help="Dequantize a quantized source.")
@revision_option
@click.option("--config", metavar="FILE", shell_complete=complete_file, help="A config.json for weights without one.")
@click.option(
    "--vocab",
    metavar="PATH",
    shell_complete=complete_source,
    help='A tokenizer for weights without one: a JSON file {"character": id, ...}, a tokenizer.json, a folder, '
    "or a hub id.",
)
@adapter_option
@click.option("--force", is_flag=True, help="Replace the output folder if it holds a model, or the GGUF file.")
@click.option("--verify", is_flag=True, help="Compare the logits and the perplexity of a text before and after.")
@click.option("--upload", "repo", metavar="REPO", help="Upload the folder to the hub as REPO (owner/name).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the summary.")
@click.option("--quiet", is_flag=True, help="Print no summary and no progress bar. There is no short form.")
def convert(
    source: str,
    quantize: str | None,
    group_size: str | None,
    repo: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Convert a GPT-2 checkpoint to a model folder that mlxgen and mlx-lm open, or to other programs' formats.

    SOURCE is a hub id (owner/name), an alias such as gpt2, a model folder with safetensors or PyTorch weights, or a
    checkpoint of another program, whose format is detected automatically:

    \b
    OpenAI, gpt-2-simple   124M/, checkpoint/run1/, model-1000.index (TensorFlow)
    nanoGPT                ckpt.pt
    build-nanogpt          log/model_19072.pt
    minGPT                 a state dict with its config.json
    llm.c                  gpt2_124M.bin, model_00001000.bin
    llama.cpp              gpt2.Q8_0.gguf
    Flax                   flax_model.msgpack
    Lightning, DeepSpeed   last.ckpt, checkpoint-500/
    any other program      a GPT-2 state dict (.pt, .bin, .safetensors), with --config

    A converted folder can be converted again. PyTorch files need the package torch; code in them is never run.
    --adapter merges an adapter into the weights first; --verify compares the result with the merged weights.

    --json prints one object with these keys: source, kind, to, folder (or file), name (for -m), chat_template
    (whether there is one), n_parameters, bytes_before, bytes_after, dtype,
    quantization (bits, group_size; or null), cache_bytes_per_token, tokenizer, adapter (its name and kind; or null),
    warnings, verification (tokens,
    largest_difference, perplexity_before, perplexity_after; or null), uploaded (an address, or null).
    """
    from mlxgen.errors import OptionError
    from mlxgen.weights.conversion import converter
    from mlxgen.weights.conversion.weight_format import GROUP_SIZE
    from mlxgen.weights.hub.upload import upload_folder

    if repo is not None and options["to"] == "gguf":
        raise OptionError("--upload is for folders; upload a GGUF file with `hf upload OWNER/NAME FILE`")
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
        ("file" if done.to == "gguf" else "folder", str(done.folder)),
        ("parameters", f"{done.n_parameters:,}"),
        ("weights", f"{size(done.bytes_before)} before, {size(done.bytes_after)} after ({done.dtype}{packed})"),
        ("cache", f"{done.cache_bytes_per_token:,} bytes per token"),
        ("tokenizer", done.tokenizer),
    ]
    if done.adapter is not None:
        lines.insert(1, ("adapter", done.adapter))
    if done.assumed_activation is not None:
        lines.append(("activation", f"{done.assumed_activation} is assumed; set another with --config FILE"))
    if v is not None:
        lines.append(("logits", f"differ by at most {v.largest_difference:.3g} (a text of {v.tokens} tokens)"))
        lines.append(("perplexity", f"{v.perplexity_before:.3f} before, {v.perplexity_after:.3f} after"))
    if address is not None:
        lines.append(("uploaded", address))
    if done.to == "mlx" and not done.chat_template:
        lines.append(("mlx-lm", "mlx_lm.chat needs a chat template, which this model lacks; use mlx_lm.generate"))
    use = "llama-completion -m" if done.to == "gguf" else "mlxgen generate -m"
    ask = "-p " if done.to == "gguf" else ""
    lines.append(("next", f'{use} {shlex.quote(done.name)} {ask}"Once upon a time"'))
    return lines
