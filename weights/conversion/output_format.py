"""The formats that `convert` writes, and where each goes by default: an MLX folder, a Hugging Face folder, GGUF."""

from __future__ import annotations

import re
from pathlib import Path

from mlxgen.errors import MlxgenError, OptionError, printable, reason_of
from mlxgen.regular_file import open_regular
from mlxgen.weights.conversion.weight_format import GROUP_SIZE, WeightFormat
from mlxgen.weights.hub.converted import converted_folder
from mlxgen.weights.hub.names import ALIASES, BUNDLED

MLX, HF, GGUF = "mlx", "hf", "gguf"
FORMATS = (MLX, HF, GGUF)

GENERIC_NAMES = ("ckpt", "model", "pytorch_model", "flax_model", "model.ckpt", "checkpoint", "mp_rank_00_model_states")
GGUF_TYPE = re.compile(r"[.-](f32|f16|bf16|q\d_\w+)$", re.IGNORECASE)  # at the end of a file's name


def check_output_format(to: str, target_format: WeightFormat, output: str | Path | None) -> None:
    """Raise OptionError for an unknown format, or for options that it does not have."""
    if to not in FORMATS:
        raise OptionError(f"to must be one of {', '.join(FORMATS)}, not {to!r}")
    quantization = target_format.quantization
    if to == HF and quantization is not None:
        raise OptionError("a Hugging Face folder is not quantized; leave out --quantize, or write --to mlx or gguf")
    if to == GGUF and quantization is not None and quantization.bits != 8:
        raise OptionError(
            "GGUF files are written in 8 bits or unquantized; for fewer, write one without --quantize and run "
            "`llama-quantize MODEL.gguf OUTPUT.gguf Q4_K_M`"
        )
    if to == GGUF and quantization is not None and quantization.group_size not in (32, GROUP_SIZE):
        raise OptionError("GGUF's 8 bits have groups of 32; leave --group-size out")
    if to != GGUF and output is not None and str(output).endswith(".gguf"):
        raise OptionError(f"{printable(str(output))} is the name of a GGUF file; add --to gguf")


def default_output(
    source: str, to: str, target_format: WeightFormat, stored_as: str = "", *, adapter: str | Path | None = None
) -> Path:
    """Where a conversion goes: a folder among the converted models, or a GGUF file in the current folder.

    stored_as: the type of the weights in a GGUF file, as llama.cpp calls it.
    """
    if to == GGUF:
        return Path(f"{_with_adapter(name_of(source), adapter)}-{stored_as}.gguf")
    return converted_folder() / default_name(source, to, target_format, adapter)


def _with_adapter(name: str, adapter: str | Path | None) -> str:
    return name if adapter is None else f"{name}-{name_of(str(adapter))}"


def default_name(source: str, to: str, target_format: WeightFormat, adapter: str | Path | None = None) -> str:
    """The name of a conversion: the last part of the source's name, the adapter's, and the format, as in "gpt2-4bit".

    A file with a generic name, such as ckpt.pt, is named after its folder. No name is one that already means a model,
    or that of something in the current directory.
    """
    name = name_of(source)
    if target_format.quantization is not None or target_format.dequantize or to == HF:
        name = re.sub(r"-[48]bit$", "", name)  # the source's own format
    name = _with_adapter(name, adapter)
    if target_format.quantization is not None:
        return f"{name}-{target_format.quantization.bits}bit"
    if target_format.dtype is not None:
        name = f"{name}-{target_format.dtype.name}"
    if to == HF:
        return f"{name}-hf"
    return f"{name}-mlx" if name == BUNDLED or name.lower() in ALIASES or Path(name).exists() else name


def name_of(source: str) -> str:
    """The last part of a source's name."""
    path = Path(source).expanduser()
    index = Path(f"{path}.index")  # of a TensorFlow checkpoint, which is named without its suffix
    path = index if not path.exists() and index.is_file() else path
    if path.is_file():
        stem = GGUF_TYPE.sub("", path.stem) if path.suffix == ".gguf" else path.stem
        name = path.absolute().parent.name if stem in GENERIC_NAMES else stem
    elif path.is_dir():
        name = path.resolve().name
    else:
        name = source.rstrip("/").rpartition("/")[2]
    return name.lstrip(".") or "model"


def check_file_free(target: Path, *, force: bool) -> None:
    """Raise MlxgenError unless a GGUF file may be written to ``target``."""
    name = printable(str(target), 200)
    try:
        str(target).encode()
        if target.is_dir():
            raise MlxgenError(f"{name}: is a folder; give the name of a file with --output")
        if not target.exists() and not target.is_symlink():
            return
        if not force:
            raise MlxgenError(f"{name}: already exists; replace it with --force, or choose another with --output")
        with open_regular(target) as file:
            if file.read(4) != b"GGUF":
                raise MlxgenError(f"{name}: is not a GGUF file, so it is not replaced; choose another with --output")
    except UnicodeEncodeError:
        raise MlxgenError(f"{str(target)!a}: is not UTF-8; choose another with --output") from None
    except OSError as error:
        raise MlxgenError(f"{name}: cannot be used ({reason_of(error)}); choose another with --output") from None
