"""Converting any GPT-2 checkpoint to a folder that mlxgen and mlx-lm both open."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxgen.dtypes import BY_NAME
from mlxgen.errors import MlxgenError, ModelError, reason_of
from mlxgen.network.config import GPT2Config
from mlxgen.reading import reading
from mlxgen.text.tokenizer import Tokenizer, load_tokenizer
from mlxgen.weights.conversion.card import licence_files, model_card
from mlxgen.weights.conversion.plan import Warn, is_quantized, plan_tensors
from mlxgen.weights.conversion.result import Conversion
from mlxgen.weights.conversion.tokenizer_choice import Files, choose_tokenizer
from mlxgen.weights.conversion.verification import compare
from mlxgen.weights.conversion.weight_format import GROUP_SIZE, WeightFormat, weight_format
from mlxgen.weights.conversion.written_config import config_entries, mlx_lm_limits, with_start_and_end
from mlxgen.weights.files.headers import main_dtype
from mlxgen.weights.files.replace_folder import check_free, replacing_folder
from mlxgen.weights.files.writer import WriteProgress, write_weights
from mlxgen.weights.hub.converted import converted_folder, converted_model
from mlxgen.weights.hub.locate import naming_hidden_model
from mlxgen.weights.hub.names import ALIASES, BUNDLED, BUNDLED_FOLDER
from mlxgen.weights.layouts import Layout, match
from mlxgen.weights.parameters import decoder_weights
from mlxgen.weights.sources.checkpoint import Checkpoint
from mlxgen.weights.sources.detect import open_checkpoint

SPARE_BYTES = 16 << 20  # room for the small files
GENERIC_NAMES = ("ckpt", "model", "pytorch_model", "model.ckpt", "checkpoint", "mp_rank_00_model_states")


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
    progress: WriteProgress | None = None,
    warn: Warn | None = None,
) -> Conversion:
    """Convert a GPT-2 checkpoint to an MLX model folder.

    source: a hub id, an alias, a folder (transformers', mlx-lm's or mlxgen's; OpenAI's release, or a fine-tune by
    gpt-2-simple), or a file: nanoGPT's ckpt.pt, build-nanogpt's or llm.c's model, a TensorFlow checkpoint, minGPT's
    state dict, or any other GPT-2 state dict. The format is detected automatically. output: the folder to write, by
    default one in `converted_folder()`, named after the source and the new format. config: a config.json for weights
    without one. vocab: a vocabulary or tokenizer for weights without one. dtype: "float32", "float16" or "bfloat16"; by
    default as stored. quantize: 4 or 8 bits, with one scale for each group_size weights (32, 64, 128); keep_head leaves
    the embeddings and the head unquantized. dequantize unpacks a quantized source. force replaces an existing model
    folder. verify compares the source and the result on a text. progress is called with (tensors written, tensors in
    all, name of the last), warn with each warning at once.

    One parameter at a time is in memory. The folder is written beside its place and renamed into it.
    Raises OptionError for invalid options and MlxgenError (mostly ModelError) for what cannot be read or written.
    """
    target_format = weight_format(dtype, quantize, group_size, keep_head, dequantize)
    warnings: list[str] = []

    def add_warning(warning: str) -> None:
        warnings.append(warning)
        if warn is not None:
            warn(warning)

    source = str(source)
    target = (
        Path(output).expanduser() if output is not None else converted_folder() / default_name(source, target_format)
    )
    target = Path(os.path.normpath(target))  # without "..", so that its last part is its name
    check_free(target, force=force)
    with naming_hidden_model(source), reading(source):
        checkpoint = open_checkpoint(source, revision=revision, config=None if config is None else Path(config))
        _check_not_source(target, checkpoint)
        model_config, layout = _matched(checkpoint)
    weights = decoder_weights(model_config, layout, lambda part: checkpoint.tensors[part.name].read())
    model_config = weights.config
    groups = plan_tensors(weights, target_format, add_warning)
    tensors = [tensor for group in groups for tensor in group.tensors.values()]
    n_bytes = sum(tensor.nbytes for tensor in tensors)
    stored_as = main_dtype(tensors).name
    quantization = target_format.quantization or (model_config.quantization if is_quantized(groups) else None)
    with reading(checkpoint.folder if vocab is None else str(vocab)):
        files, tokenizer = choose_tokenizer(checkpoint, model_config.vocab_size, None if vocab is None else str(vocab))
    for note in (*layout.notes, *mlx_lm_limits(model_config)):
        add_warning(note)
    entries = config_entries(checkpoint.entries, model_config, quantization, stored_as)
    changes = _changes(target_format, stored_as, bool(layout.packed), tokenizer)
    verification = None
    try:
        with replacing_folder(target, force=force) as folder:
            _check_space(folder, target, n_bytes)
            _write_json(folder / "config.json", entries)
            _write_files(folder, files, checkpoint, model_card(checkpoint, target.absolute().name, changes))
            checked = _check_tokenizer(folder, model_config.vocab_size)
            template = checked.chat_template
            _write_json(folder / "config.json", with_start_and_end(entries, checked))
            write_weights(folder, groups, progress)
            if verify:
                verification = compare(weights, folder)
    except OSError as error:
        reason = reason_of(error)
        if error.errno == errno.ENOSPC:
            reason = f"no space left for the model's {n_bytes / 1e9:.2f} GB"
        raise MlxgenError(f"{target}: could not be written ({reason}); nothing there was changed") from None
    return Conversion(
        source=source,
        kind=checkpoint.kind,
        folder=target,
        name=target.name if converted_model(target.name) == target else str(target),
        chat_template=template is not None,
        n_parameters=model_config.n_parameters,
        bytes_before=layout.nbytes,
        bytes_after=n_bytes,
        dtype=stored_as,
        quantization=quantization,
        cache_bytes_per_token=model_config.cache_bytes_per_token(BY_NAME[stored_as].itemsize),
        tokenizer=tokenizer,
        assumed_activation=model_config.activation_function if checkpoint.activation_assumed else None,
        warnings=tuple(warnings),
        verification=verification,
    )


def default_name(source: str, target_format: WeightFormat) -> str:
    """The name of a conversion: the last part of the source's name, and the format, such as "gpt2-4bit".

    A file with a generic name, such as ckpt.pt, is named after its folder. No name is one that already means a model,
    or that of something in the current directory.
    """
    name = _name_of(source)
    if target_format.quantization is not None or target_format.dequantize:
        name = re.sub(r"-[48]bit$", "", name)  # the source's own format
    if target_format.quantization is not None:
        return f"{name}-{target_format.quantization.bits}bit"
    if target_format.dtype is not None:
        return f"{name}-{target_format.dtype.name}"
    return f"{name}-mlx" if name == BUNDLED or name.lower() in ALIASES or Path(name).exists() else name


def _name_of(source: str) -> str:
    path = Path(source).expanduser()
    index = Path(f"{path}.index")  # of a TensorFlow checkpoint, which is named without its suffix
    path = index if index.is_file() and not path.exists() else path
    if path.is_file():
        name = path.absolute().parent.name if path.stem in GENERIC_NAMES else path.stem
    elif path.is_dir():
        name = path.resolve().name
    else:
        name = source.rstrip("/").rpartition("/")[2]
    return name.lstrip(".") or "model"


def _matched(checkpoint: Checkpoint) -> tuple[GPT2Config, Layout]:
    """The checkpoint's config, and its tensors matched to the decoder."""
    try:
        config = GPT2Config.from_dict(checkpoint.entries)
        return config, match(checkpoint.stored, config, checkpoint.settings)
    except ModelError as error:
        raise ModelError(f"{checkpoint.path}: {error}") from None


def _check_not_source(target: Path, checkpoint: Checkpoint) -> None:
    """Refuse to replace the bundled model, or a folder that contains the source file.

    A model folder may replace itself, because it is read before it is replaced.
    """
    if target.resolve() == BUNDLED_FOLDER.resolve():
        raise MlxgenError(f"{target}: is the bundled model, which is never replaced; choose another with --output")
    if target.resolve() in checkpoint.path.resolve().parents:
        raise MlxgenError(f"{target}: contains the source, so it is not replaced; choose another with --output")


def _changes(target_format: WeightFormat, stored_as: str, was_packed: bool, tokenizer: str) -> list[str]:
    """What the conversion did, in sentences for the model card."""
    changes = [f"Weights: {stored_as}, as [out, in]."]
    if target_format.quantization is not None:
        q = target_format.quantization
        kept = "; the embeddings and the head are not quantized" if target_format.keep_head else ""
        changes.append(f"Quantized to {q.bits} bits, one scale and bias for each {q.group_size} weights{kept}.")
    elif was_packed:
        changes.append(
            "Unpacked from a quantized model." if target_format.dequantize else "Quantized as the source is."
        )
    if tokenizer != "the source's":
        changes.append(f"Tokenizer: {tokenizer}.")
    return changes


def _check_space(folder: Path, target: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < n_bytes + SPARE_BYTES:
        raise MlxgenError(
            f"{target}: not enough space: the model takes {n_bytes / 1e9:.2f} GB and {free / 1e9:.2f} GB are free; "
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


def _check_tokenizer(folder: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer. One that cannot be opened is refused, before the weights are written."""
    try:
        return load_tokenizer(folder, n_embeddings=vocab_size)
    except ModelError as error:
        message = str(error).replace(str(folder), "the source")
        raise ModelError(f"{message}; give another tokenizer with --vocab") from None


def _write_json(path: Path, entries: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(entries, indent=4) + "\n", encoding="utf-8")
