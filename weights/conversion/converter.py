"""Any GPT-2 checkpoint becomes a folder that mlxgen and mlx-lm both open."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mlxgen.errors import MlxgenError, ModelError, OptionError
from mlxgen.network.config import GPT2Config, Quantization
from mlxgen.weights.conversion.card import card, licence_files
from mlxgen.weights.conversion.plan import DTYPES, Job, WeightFormat, Weights, heads_differ, jobs, main_dtype, nbytes
from mlxgen.weights.conversion.verification import Verification, compare
from mlxgen.weights.conversion.vocabulary import Files, tokenizer_files
from mlxgen.weights.conversion.written_config import mlx_lm_limits, written_config
from mlxgen.weights.files.replace_folder import check_free, written_beside
from mlxgen.weights.files.writer import Progress, write_weights
from mlxgen.weights.hub.resolve import BUNDLED_FOLDER
from mlxgen.weights.layouts import HEAD, match
from mlxgen.weights.sources.detect import open_checkpoint
from mlxgen.weights.sources.record import Checkpoint

BITS, GROUP_SIZES = (4, 8), (32, 64, 128)
GROUP_SIZE = 64
SPARE_BYTES = 16 << 20  # room for the small files
GENERIC_NAMES = ("ckpt", "model", "pytorch_model")


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was converted, and what came out. Sizes in bytes, of the weights alone."""

    source: str
    kind: str
    folder: Path
    n_parameters: int
    bytes_before: int
    bytes_after: int
    dtype: str
    quantization: Quantization | None
    cache_bytes_per_token: int
    tokenizer: str  # where it is from
    assumed_activation: str | None  # of a state dict, which does not say it
    warnings: tuple[str, ...]
    verification: Verification | None


def convert(
    source: str | Path,
    output: str | Path | None = None,
    *,
    revision: str | None = None,
    config: str | Path | None = None,
    vocab: str | Path | None = None,
    dtype: str | None = None,
    quantize: int | None = None,
    group_size: int = GROUP_SIZE,
    keep_head: bool = False,
    dequantize: bool = False,
    force: bool = False,
    verify: bool = False,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Conversion:
    """Make an MLX folder of a GPT-2 checkpoint.

    source: a hub id, an alias, a folder (transformers', mlx-lm's or mlxgen's), or a file: nanoGPT's ckpt.pt, minGPT's
    state dict, a bare state dict. output: the folder to write, by default weights/<name>. config: a config.json for
    weights that come without. vocab: a vocabulary or tokenizer for those that come without. dtype: "float32", "float16"
    or "bfloat16"; as stored by default. quantize: 4 or 8 bits, one scale for each group_size weights (32, 64, 128);
    keep_head leaves the embeddings and the head as they are. dequantize unpacks a quantized source. force replaces a
    model folder. verify runs a text through source and result. progress is called with (tensors done, tensors in all,
    name), warn with each warning as it comes.

    One parameter at a time is in memory. The folder is written beside its place and renamed into it.
    Raises OptionError for bad options and MlxgenError (mostly ModelError) for what cannot be read or written.
    """
    wanted = _wanted_format(dtype, quantize, group_size, keep_head, dequantize)
    warnings: list[str] = []

    def told(warning: str) -> None:
        warnings.append(warning)
        if warn is not None:
            warn(warning)

    source = str(source)
    place = Path(output).expanduser() if output is not None else Path("weights") / default_name(source)
    place = Path(os.path.normpath(place))  # its name is what comes last
    check_free(place, force=force)
    checkpoint = open_checkpoint(source, revision=revision, config=None if config is None else Path(config))
    _keep_apart(place, checkpoint)
    weights = _weights(checkpoint)
    todo = jobs(weights, wanted, told)
    parts = [part for job in todo for part in job.parts]
    files, tokenizer = tokenizer_files(checkpoint, weights.config.vocab_size, None if vocab is None else str(vocab))
    for limit in mlx_lm_limits(weights.config):
        told(limit)
    quantization = wanted.quantization or (weights.config.quantization if _packed(todo) else None)
    stored_as = main_dtype(parts)
    entries = written_config(checkpoint.entries, weights.config, quantization, stored_as)
    done = _sentences(weights, wanted, stored_as, tokenizer)
    total = sum(part.nbytes for part in parts)
    verification = None
    try:
        with written_beside(place, force=force) as folder:
            _check_space(folder, place, total)
            _write_json(folder / "config.json", entries)
            _write_files(folder, files, checkpoint, card(checkpoint, place.absolute().name, done))
            _check_tokenizer(folder, weights.config.vocab_size)
            write_weights(folder, todo, progress)
            if verify:
                verification = compare(weights, folder)
    except OSError as error:
        what = error.strerror or error
        if error.errno == errno.ENOSPC:
            what = f"no space for the model's {total / 1e9:.2f} GB"
        raise MlxgenError(f"{place}: not written ({what}); nothing was changed there") from None
    return Conversion(
        source,
        checkpoint.kind,
        place,
        weights.config.n_parameters,
        nbytes(weights.layout),
        total,
        stored_as,
        quantization,
        weights.config.cache_bytes_per_token(DTYPES[stored_as].size),
        tokenizer,
        weights.config.activation_function if checkpoint.activation_assumed else None,
        tuple(warnings),
        verification,
    )


def default_name(source: str) -> str:
    """The last part of a source's name: of a hub id, a folder, or the folder of a file called ckpt.pt."""
    path = Path(source).expanduser()
    if path.is_file():
        name = path.absolute().parent.name if path.stem in GENERIC_NAMES else path.stem
    elif path.is_dir():
        name = path.resolve().name
    else:
        name = source.rstrip("/").rpartition("/")[2]
    return name.lstrip(".") or "model"


def _wanted_format(
    dtype: str | None, quantize: int | None, group_size: int, keep_head: bool, dequantize: bool
) -> WeightFormat:
    if dtype is not None and dtype not in DTYPES:
        raise OptionError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    if quantize is not None and quantize not in BITS:
        raise OptionError(f"quantize must be 4 or 8 (bits), not {quantize!r}")
    if group_size not in GROUP_SIZES:
        raise OptionError(f"group_size must be 32, 64 or 128, not {group_size!r}")
    if quantize is not None and dequantize:
        raise OptionError("quantize and dequantize exclude each other")
    if quantize is None and (keep_head or group_size != GROUP_SIZE):
        raise OptionError("group_size and keep_head are for --quantize 4 or 8")
    quantization = None if quantize is None else Quantization(group_size, quantize)
    return WeightFormat(None if dtype is None else DTYPES[dtype], quantization, keep_head, dequantize)


def _weights(checkpoint: Checkpoint) -> Weights:
    """The checkpoint's tensors matched to the decoder."""
    try:
        config = GPT2Config.from_dict(checkpoint.entries)
        weights = Weights(checkpoint, config, match(checkpoint.stored, config))
    except ModelError as error:
        raise ModelError(f"{checkpoint.where}: {error}") from None
    if config.tie_word_embeddings and HEAD in weights.layout.sources and heads_differ(weights):
        return replace(weights, config=replace(config, tie_word_embeddings=False))
    return weights


def _keep_apart(place: Path, checkpoint: Checkpoint) -> None:
    """A model folder may replace itself, being read before; what holds the source besides is not replaced.

    The bundled model is never replaced.
    """
    if place.resolve() == BUNDLED_FOLDER.resolve():
        raise MlxgenError(f"{place}: is the bundled model, which stays as it is; choose another folder with --output")
    if place.resolve() in checkpoint.where.resolve().parents:
        raise MlxgenError(f"{place}: holds the source itself; choose another folder with --output")


def _packed(todo: list[Job]) -> bool:
    return any(len(job.parts) > 1 for job in todo)


def _sentences(weights: Weights, wanted: WeightFormat, stored_as: str, tokenizer: str) -> list[str]:
    """What was done, for the model card."""
    done = [f"Weights: {stored_as}, as [out, in]."]
    if wanted.quantization is not None:
        q = wanted.quantization
        kept = "; the embeddings and the head are not quantized" if wanted.keep_head else ""
        done.append(f"Quantized to {q.bits} bits, one scale and bias for each {q.group_size} weights{kept}.")
    elif weights.layout.packed:
        done.append("Unpacked from a quantized model." if wanted.unpack else "Quantized as the source is.")
    if tokenizer != "the source's":
        done.append(f"Tokenizer: {tokenizer}.")
    return done


def _check_space(folder: Path, place: Path, total: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < total + SPARE_BYTES:
        raise MlxgenError(
            f"{place}: no space: the model takes {total / 1e9:.2f} GB and {free / 1e9:.2f} GB are free; "
            "choose another disk with --output"
        )


def _write_files(folder: Path, files: Files, checkpoint: Checkpoint, readme: str) -> None:
    generation = checkpoint.folder / "generation_config.json"
    copied: Files = {generation.name: generation} if generation.is_file() else {}
    copied |= {path.name: path for path in licence_files(checkpoint.folder)}
    for name, content in (copied | files).items():
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            shutil.copyfile(content, folder / name)
    (folder / "README.md").write_text(readme, encoding="utf-8")


def _check_tokenizer(folder: Path, vocab_size: int) -> None:
    from mlxgen.text.tokenizer import load_tokenizer

    try:
        load_tokenizer(folder, n_embeddings=vocab_size)
    except ModelError as error:
        message = str(error).replace(str(folder), "the source")
        raise ModelError(f"{message}; --vocab names another tokenizer") from None


def _write_json(path: Path, entries: dict[str, Any]) -> None:
    path.write_text(json.dumps(entries, indent=4) + "\n", encoding="utf-8")


def as_json(conversion: Conversion) -> dict[str, Any]:
    """The record as `mlxgen convert --json` prints it."""
    q = conversion.quantization
    v = conversion.verification
    entries = {name: getattr(conversion, name) for name in ("source", "kind", "n_parameters", "bytes_before")}
    return {
        **entries,
        "folder": str(conversion.folder),
        "bytes_after": conversion.bytes_after,
        "dtype": conversion.dtype,
        "quantization": {"bits": q.bits, "group_size": q.group_size} if q else None,
        "cache_bytes_per_token": conversion.cache_bytes_per_token,
        "tokenizer": conversion.tokenizer,
        "warnings": list(conversion.warnings),
        "verification": asdict(v) if v else None,
    }
