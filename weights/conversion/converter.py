"""Converting any GPT-2 checkpoint: to a folder that mlxgen and mlx-lm open, to one for transformers, or to GGUF."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from mlxgen.dtypes import BY_NAME
from mlxgen.errors import MlxgenError, ModelError, reason_of
from mlxgen.network.config import GPT2Config, Quantization
from mlxgen.reading import reading
from mlxgen.weights.adapters.adapter import Adapter, open_adapter
from mlxgen.weights.adapters.merge import merge
from mlxgen.weights.conversion.card import card_header, model_card
from mlxgen.weights.conversion.folder_output import check_space, write_model_folder
from mlxgen.weights.conversion.gguf_file import check_gguf, gguf_tensors, gguf_type, model_entries
from mlxgen.weights.conversion.gguf_output import tokenizer_of_files, write_gguf_file
from mlxgen.weights.conversion.gguf_vocabulary import vocabulary_entries
from mlxgen.weights.conversion.hf_layout import as_conv1d
from mlxgen.weights.conversion.output_format import (
    GGUF,
    HF,
    MLX,
    check_file_free,
    check_output_format,
    default_output,
    name_of,
)
from mlxgen.weights.conversion.plan import Warn, is_quantized, plan_tensors
from mlxgen.weights.conversion.result import Conversion, Written
from mlxgen.weights.conversion.tokenizer_choice import Files, choose_tokenizer
from mlxgen.weights.conversion.verification import compare
from mlxgen.weights.conversion.weight_format import GROUP_SIZE, WeightFormat, weight_format
from mlxgen.weights.conversion.written_config import config_entries, mlx_lm_limits
from mlxgen.weights.files.headers import main_dtype
from mlxgen.weights.files.model_folder import has_tokenizer, unused_adapter
from mlxgen.weights.files.replace_folder import check_free, replacing_folder
from mlxgen.weights.files.writer import WriteProgress
from mlxgen.weights.hub.converted import converted_model
from mlxgen.weights.hub.locate import naming_hidden_model
from mlxgen.weights.hub.names import BUNDLED_FOLDER
from mlxgen.weights.layouts import Layout, match
from mlxgen.weights.parameters import DecoderWeights, decoder_weights
from mlxgen.weights.sources.checkpoint import Checkpoint
from mlxgen.weights.sources.detect import open_checkpoint

REPACKED = (
    "the layers that the adapter changes are quantized again, as the source is, which rounds what it adds; --verify"
    " shows how much that changes, and --dequantize keeps it exactly"
)


def convert(
    source: str | Path,
    output: str | Path | None = None,
    *,
    to: str = MLX,
    revision: str | None = None,
    config: str | Path | None = None,
    vocab: str | Path | None = None,
    adapter: str | Path | None = None,
    dtype: str | None = None,
    quantize: int | None = None,
    group_size: int = GROUP_SIZE,
    keep_head: bool = False,
    dequantize: bool = False,
    force: bool = False,
    verify: bool = False,
    progress: WriteProgress | None = None,
    warn: Warn | None = None,
) -> Conversion:
    """Convert a GPT-2 checkpoint to an MLX model folder, a Hugging Face folder or a GGUF file.

    source: a hub id, an alias, a folder (transformers', mlx-lm's or mlxgen's; OpenAI's release, or a fine-tune by
    gpt-2-simple), or a file: GGUF, nanoGPT's ckpt.pt, build-nanogpt's or llm.c's model, a TensorFlow checkpoint,
    minGPT's state dict, or any other GPT-2 state dict. The format is detected automatically. output: the folder to
    write, by default one in `converted_folder()`, named after the source and the new format; for GGUF a file, by
    default in the current folder. to: "mlx", "hf" (for transformers) or "gguf" (for llama.cpp). config: a config.json
    for weights without one. vocab: a vocabulary or tokenizer for weights without one. adapter: an adapter of PEFT or
    mlx-lm to merge into the weights, a folder or a hub id. dtype: "float32", "float16" or "bfloat16"; by default as
    stored. quantize: 4 or 8 bits, with one scale for each group_size weights (32, 64, 128); keep_head leaves the
    embeddings and the head unquantized. dequantize unpacks a quantized source. force replaces an existing model folder
    or GGUF file. verify compares the source, with its adapter, and the result on a text. progress is called with
    (tensors written, tensors in all, name of the last), warn with each warning at once.

    One parameter at a time is in memory. The result is written beside its place and renamed into it.
    Raises OptionError for invalid options and MlxgenError (mostly ModelError) for what cannot be read or written.
    """
    target_format = weight_format(dtype, quantize, group_size, keep_head, dequantize)
    check_output_format(to, target_format, output)
    warnings: list[str] = []

    def add_warning(warning: str) -> None:
        warnings.append(warning)
        if warn is not None:
            warn(warning)

    source = str(source)
    for name in (source, "" if adapter is None else str(adapter)):
        _check_utf8(name)
    target = None if output is None else Path(output).expanduser()
    if target is None and to != GGUF:
        target = default_output(source, to, target_format, adapter=adapter)
    if target is not None:
        target = _free(target, to, force=force)
    opened = None if adapter is None else open_adapter(adapter)
    with naming_hidden_model(source), reading(source):
        checkpoint = open_checkpoint(source, revision=revision, config=None if config is None else Path(config))
        model_config, layout = _matched(checkpoint)
    weights = decoder_weights(model_config, layout, checkpoint.read)
    if opened is not None:
        with reading(opened.folder):
            weights = merge(weights, opened, add_warning)
    elif checkpoint.path.is_dir() and (note := unused_adapter(checkpoint.path)):
        add_warning(note)
    model_config = weights.config
    if target is None:
        stored_as = gguf_type(weights, target_format)
        target = _free(default_output(source, to, target_format, stored_as, adapter=adapter), to, force=force)
    _check_not_source(target, checkpoint)
    given = None if vocab is None else str(vocab)
    with reading(checkpoint.folder if given is None else given):
        files, tokenizer = _tokenizer(checkpoint, opened, model_config.vocab_size, given)
    for note in (*layout.notes, *(mlx_lm_limits(model_config) if to == MLX else ())):
        add_warning(note)
    job = _Job(source, target, to, _with_adapter(checkpoint, opened), weights, files, tokenizer, target_format, force)
    written = (_to_gguf if to == GGUF else _to_folder)(job, verify, progress, add_warning)
    return Conversion(
        source=source,
        kind=checkpoint.kind,
        to=to,
        folder=target,
        name=target.name if converted_model(target.name) == target else str(target),
        chat_template=written.chat_template,
        n_parameters=model_config.n_parameters,
        bytes_before=layout.nbytes,
        bytes_after=written.n_bytes,
        dtype=written.dtype,
        quantization=written.quantization,
        cache_bytes_per_token=model_config.cache_bytes_per_token(BY_NAME[written.dtype].itemsize),
        tokenizer=tokenizer,
        adapter=f"{opened.name} ({opened.kind})" if opened else None,
        assumed_activation=model_config.activation_function if checkpoint.activation_assumed else None,
        warnings=tuple(warnings),
        verification=written.verification,
    )


@dataclass(frozen=True, slots=True)
class _Job:
    """A checkpoint, opened and matched, and what is to be made of it."""

    source: str
    target: Path
    to: str
    checkpoint: Checkpoint
    weights: DecoderWeights
    files: Files
    tokenizer: str  # where it is from
    target_format: WeightFormat
    force: bool


def _to_folder(job: _Job, verify: bool, progress: WriteProgress | None, warn: Warn) -> Written:
    config, target_format = job.weights.config, job.target_format
    if job.to == HF:
        unpacked = plan_tensors(job.weights, replace(target_format, dequantize=True), warn)
        groups = [as_conv1d(group) for group in unpacked]
    else:
        groups = plan_tensors(job.weights, target_format, warn)
        repacked = len(job.weights.packed) < len(job.weights.layout.packed)
        if repacked and target_format.quantization is None and not target_format.dequantize:
            warn(REPACKED)
    tensors = [tensor for group in groups for tensor in group.tensors.values()]
    n_bytes = sum(tensor.nbytes for tensor in tensors)
    stored_as = main_dtype(tensors).name
    quantization = target_format.quantization or (config.quantization if is_quantized(groups) else None)
    entries = config_entries(job.checkpoint.entries, config, quantization, stored_as)
    changes = _changes(job, stored_as, is_quantized(groups))
    card = model_card(job.checkpoint, job.target.absolute().name, changes, job.to)
    verification = None
    with _explaining(job.target, n_bytes), replacing_folder(job.target, force=job.force) as folder:
        check_space(folder, job.target, n_bytes)
        written = write_model_folder(folder, job.to, job.checkpoint, entries, job.files, card, groups, progress)
        if verify:
            verification = compare(job.weights, folder)
    return Written(n_bytes, stored_as, quantization, written.chat_template is not None, verification)


def _to_gguf(job: _Job, verify: bool, progress: WriteProgress | None, warn: Warn) -> Written:
    config, target_format = job.weights.config, job.target_format
    try:
        check_gguf(config)
        tokenizer = tokenizer_of_files(job.files, job.checkpoint.entries, config.vocab_size)
        vocabulary = vocabulary_entries(tokenizer, config.vocab_size)
    except ModelError as error:
        raise ModelError(f"{job.checkpoint.path}: {error}") from None
    main = gguf_type(job.weights, target_format)
    tensors = gguf_tensors(job.weights, main, keep_head=target_format.keep_head, warn=warn)
    n_bytes = sum(tensor.nbytes for tensor in tensors)
    metadata = model_entries(config, name_of(job.source), main)
    if isinstance(licence := card_header(job.checkpoint).get("license"), str):
        metadata["general.license"] = licence
    metadata |= vocabulary
    source = (job.weights, tokenizer) if verify else None
    with _explaining(job.target, n_bytes):
        verification = write_gguf_file(job.target, metadata, tensors, progress, source)
    dtype = {"F32": "float32", "BF16": "bfloat16"}.get(main, "float16")
    quantization = Quantization(32, 8) if main == "Q8_0" else None
    return Written(n_bytes, dtype, quantization, tokenizer.chat_template is not None, verification)


@contextmanager
def _explaining(target: Path, n_bytes: int) -> Iterator[None]:
    """Turn an OSError into one line."""
    try:
        yield
    except OSError as error:
        reason = reason_of(error)
        if error.errno == errno.ENOSPC:
            reason = f"no space left for the model's {n_bytes / 1e9:.2f} GB"
        raise MlxgenError(f"{target}: could not be written ({reason}); nothing there was changed") from None


def _check_utf8(name: str) -> None:
    """Refuse a name that could not be written into the model card and the record of a folder's origin."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ModelError(f"{name!a}: is not UTF-8; rename it") from None


def _free(target: Path, to: str, *, force: bool) -> Path:
    """The target without "..", so that its last part is its name, once it may be written."""
    target = Path(os.path.normpath(target))
    if to == GGUF:
        check_file_free(target, force=force)
    else:
        check_free(target, force=force)
    return target


def _matched(checkpoint: Checkpoint) -> tuple[GPT2Config, Layout]:
    """The checkpoint's config, and its tensors matched to the decoder."""
    try:
        config = GPT2Config.from_dict(checkpoint.entries)
        return config, match(checkpoint.stored, config, checkpoint.settings)
    except ModelError as error:
        raise ModelError(f"{checkpoint.path}: {error}") from None


def _tokenizer(
    checkpoint: Checkpoint, adapter: Adapter | None, vocab_size: int, vocab: str | None
) -> tuple[Files, str]:
    """The tokenizer files, and in words where they are from. An adapter's own come before the source's."""
    if adapter is None or vocab is not None or not has_tokenizer(adapter.folder):
        return choose_tokenizer(checkpoint, vocab_size, vocab)
    files, _ = choose_tokenizer(replace(checkpoint, folder=adapter.folder, tokenizer=None), vocab_size)
    return files, "the adapter's"


def _with_adapter(checkpoint: Checkpoint, adapter: Adapter | None) -> Checkpoint:
    """The checkpoint, whose kind tells of the adapter, for the model card and the record of a folder's origin."""
    if adapter is None:
        return checkpoint
    return replace(checkpoint, kind=f"{checkpoint.kind}, with the adapter {adapter.name} ({adapter.kind})")


def _check_not_source(target: Path, checkpoint: Checkpoint) -> None:
    """Refuse to replace the bundled model, or a folder that contains the source file.

    A model folder may replace itself, because it is read before it is replaced.
    """
    if target.resolve() == BUNDLED_FOLDER.resolve():
        raise MlxgenError(f"{target}: is the bundled model, which is never replaced; choose another with --output")
    if target.resolve() in checkpoint.path.resolve().parents:
        raise MlxgenError(f"{target}: contains the source, so it is not replaced; choose another with --output")


def _changes(job: _Job, stored_as: str, stays_packed: bool) -> list[str]:
    """What the conversion did, in sentences for the model card."""
    changes = [f"Weights: {stored_as}, as {'[in, out]' if job.to == HF else '[out, in]'}."]
    quantization = job.target_format.quantization
    if quantization is not None:
        kept = "; the embeddings and the head are not quantized" if job.target_format.keep_head else ""
        q = quantization
        changes.append(f"Quantized to {q.bits} bits, one scale and bias for each {q.group_size} weights{kept}.")
    elif job.weights.layout.packed:
        changes.append("Quantized as the source is." if stays_packed else "Unpacked from a quantized model.")
    if job.tokenizer != "the source's":
        changes.append(f"Tokenizer: {job.tokenizer}.")
    return changes
