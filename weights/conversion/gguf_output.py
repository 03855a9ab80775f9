"""From matched weights to a GGUF file, and back again to check it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxgen.atomic_file import replacing_file
from mlxgen.errors import MlxgenError, ModelError, reason_of
from mlxgen.network.config import GPT2Config
from mlxgen.network.decoder import GPT2
from mlxgen.text.tokenizer import Tokenizer
from mlxgen.weights.conversion.folder_output import check_space, checked_tokenizer, write_files
from mlxgen.weights.conversion.gguf_file import GGUFTensor, write_gguf
from mlxgen.weights.conversion.tokenizer_choice import Files
from mlxgen.weights.conversion.verification import Verification, compare_decoders, encoded
from mlxgen.weights.files.replace_folder import creating
from mlxgen.weights.files.writer import WriteProgress
from mlxgen.weights.layouts import match
from mlxgen.weights.load import build_decoder
from mlxgen.weights.parameters import DecoderWeights, decoder_weights
from mlxgen.weights.sources.checkpoint import Checkpoint
from mlxgen.weights.sources.gguf import open_gguf


def tokenizer_of_files(files: Files, entries: Mapping[str, Any], vocab_size: int) -> Tokenizer:
    """The tokenizer that some files make in a model folder. entries: of its config.json.

    Raises ModelError, and MlxgenError where there is no place for a copy of the files.
    """
    try:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            kind = {"tokenizer_class": entries.get("tokenizer_class")}
            (folder / "config.json").write_text(json.dumps(kind), encoding="utf-8")
            write_files(folder, files)
            return checked_tokenizer(folder, vocab_size)
    except OSError as error:
        raise MlxgenError(
            f"the tokenizer could not be copied to a temporary folder ({reason_of(error)}); "
            "set TMPDIR to a folder with space"
        ) from None


def write_gguf_file(
    target: Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[GGUFTensor],
    progress: WriteProgress | None,
    verify: tuple[DecoderWeights, Tokenizer] | None,
) -> Verification | None:
    """Write the file beside its place and rename it. verify: the source, to compare the file with. Raises OSError."""
    with creating(target.parent), replacing_file(target) as part:
        check_space(part.parent, target, sum(tensor.nbytes for tensor in tensors))
        write_gguf(part, metadata, tensors, progress)
        return None if verify is None else _compare(*verify, part, target)


def _compare(weights: DecoderWeights, tokenizer: Tokenizer, file: Path, target: Path) -> Verification:
    """Compare the source with the file that was made from it, read as any other GGUF file is. target: its place."""
    checkpoint = open_gguf(file)
    assert checkpoint.tokenizer is not None
    files: Files = {**checkpoint.tokenizer()}
    read_back = tokenizer_of_files(files, checkpoint.entries, weights.config.vocab_size)
    if encoded(read_back) != encoded(tokenizer):
        raise ModelError(f"{target}: its tokenizer gives other tokens than the source's; write --to hf")
    return compare_decoders(weights, tokenizer, lambda: _decoder(checkpoint), target)


def _decoder(checkpoint: Checkpoint) -> GPT2:
    config = GPT2Config.from_dict(checkpoint.entries)
    layout = match(checkpoint.stored, config, checkpoint.settings)
    weights = decoder_weights(config, layout, checkpoint.read)
    return build_decoder(weights, packed=False)
