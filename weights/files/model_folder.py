"""The files that a model consists of, in a folder or on the hub, and what is wrong with a folder that lacks them."""

from __future__ import annotations

import shlex
from collections.abc import Set
from pathlib import Path

from mlxgen.errors import ModelError, printable
from mlxgen.installation import install_command
from mlxgen.json_file import read_json
from mlxgen.lfs_pointer import check_not_pointer
from mlxgen.weights.files.recognition import PYTORCH, folders_with, inner_models, recognise_file, recognise_folder

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = "model-*-of-*.safetensors"
TORCH_SINGLE = "pytorch_model.bin"
TORCH_INDEX = "pytorch_model.bin.index.json"
TORCH_WEIGHTS = (TORCH_SINGLE, TORCH_INDEX, "pytorch_model-*-of-*.bin")
FLAX_WEIGHTS = "flax_model.msgpack"
ADAPTER_CONFIG = "adapter_config.json"
DEEPSPEED_SCRIPT = "zero_to_fp32.py"  # in the folder of every checkpoint
ORIGIN = "converted_from.json"  # see `origin`
PEFT_ADAPTER, PEFT_ADAPTER_TORCH, MLX_ADAPTER = "adapter_model.safetensors", "adapter_model.bin", "adapters.safetensors"
ADAPTER_FILES = (PEFT_ADAPTER, PEFT_ADAPTER_TORCH, MLX_ADAPTER)

SENTENCEPIECE = ("tokenizer.model", "spiece.model", "spm.model", "sentencepiece.bpe.model")
#: Files each of which is a whole tokenizer.
WHOLE_TOKENIZERS = ("tokenizer.json", "vocab.txt", *SENTENCEPIECE)
#: The tokenizer's files.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    *SENTENCEPIECE,
)
#: Files besides the weights that opening a model can need.
SMALL_FILES = ("config.json", "generation_config.json", *TOKENIZER_FILES)
LICENCE_FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE", "NOTICE.txt", "NOTICE.md")
CARD_FILES = ("README.md", *LICENCE_FILES)
_DIGITS = "[0-9]" * 5
#: Every file that mlxgen, mlx-lm or transformers write into a model folder. One with anything else is not replaced.
ALL_FILES = (
    *SMALL_FILES,
    *CARD_FILES,
    SINGLE,
    INDEX,
    f"model-{_DIGITS}-of-{_DIGITS}.safetensors",
    TORCH_SINGLE,
    TORCH_INDEX,
    f"pytorch_model-{_DIGITS}-of-{_DIGITS}.bin",
    ORIGIN,
    "chat_template.json",
    "encoder.json",
    "vocab.bpe",
    "training_args.bin",
    ".gitattributes",
    ".DS_Store",
)

MAX_INDEX_BYTES = 64 << 20
LONGEST_NAME = 500  # of a base model, in characters


def has_safetensors(folder: Path) -> bool:
    """Whether the folder contains weights that mlxgen opens."""
    return any(folder.glob("model*.safetensors"))


def has_torch_weights(folder: Path) -> bool:
    """Whether the folder contains PyTorch weights under the names that transformers gives them."""
    return any(folder.glob("pytorch_model*.bin"))


def has_tokenizer(folder: Path) -> bool:
    """Whether the folder contains a whole tokenizer."""
    return make_a_tokenizer({name for name in TOKENIZER_FILES if (folder / name).is_file()})


def make_a_tokenizer(names: Set[str]) -> bool:
    """Whether files of these names are a whole tokenizer."""
    return not names.isdisjoint(WHOLE_TOKENIZERS) or {"vocab.json", "merges.txt"} <= names


def check_model_folder(folder: Path) -> None:
    """Raise ModelError, with what ``folder`` is instead, unless it can be a model folder."""
    if not folder.exists():
        raise ModelError(f"{folder}: no such folder")
    if not folder.is_dir():
        check_not_pointer(folder)
        kind = recognise_file(folder)
        if kind is None:
            raise ModelError(f"{folder}: is a file; give the folder that contains the model")
        raise ModelError(f"{folder}: is {kind.what}; {kind.advice_for(folder)}")
    if not any(folder.iterdir()):
        raise ModelError(f"{folder}: is an empty folder; a model consists of config.json, weights and a tokenizer")
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder}: has no config.json, so it is not a model folder{_found_instead(folder)}")


def check_no_model(path: Path) -> None:
    """Raise ModelError, with what opens it, if the path is a model folder, or a file or folder of other weights."""
    if path.is_file():
        kind = recognise_file(path)
        if kind is not None and kind.patterns:  # neither a web page nor an archive
            check_model_folder(path)
    elif (path / "config.json").is_file() and has_safetensors(path):
        raise ModelError(f"{path}: is a model folder; open it with `-m {shlex.quote(str(path))}`")
    elif recognise_folder(path):
        check_model_folder(path)
        weight_files(path)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of the model in ``folder``.

    They are model.safetensors, or else the shards that the index lists, or else every model*.safetensors. Raises
    ModelError where there are none, or where the index lists one that is missing.
    """
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        return indexed_files(folder, INDEX)
    found = sorted(path for path in folder.glob("model*.safetensors") if path.is_file())
    if found:
        return found
    instead = recognise_folder(folder)
    if has_torch_weights(folder) or (instead is not None and instead[0].what == PYTORCH):
        name = instead[1].name if instead is not None and instead[0].what == PYTORCH else TORCH_SINGLE
        raise ModelError(torch_weights_only(str(folder), str(folder), f" ({name})"))
    raise ModelError(f"{folder}: has no weights ({SINGLE}, or shards with {INDEX}){_found_instead(folder)}")


def torch_weights_only(where: str, source: str, detail: str = "") -> str:
    """The message for a model that has to be converted before it can be opened."""
    return (
        f"{where}: has only PyTorch weights{detail}; convert them with `mlxgen convert {shlex.quote(source)}` "
        f"(which needs torch: `{install_command('torch')}`)"
    )


def indexed_files(folder: Path, index: str) -> list[Path]:
    """The files that the folder's index lists, each once. Raises ModelError where one is missing."""
    path = folder / index
    suffix = ".safetensors" if index == INDEX else ".bin"
    weight_map = read_json(path, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{path}: lists no files (its weight_map is missing or empty); download it again")
    names: set[str] = set()
    for name in weight_map.values():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(suffix):
            raise ModelError(f"{path}: lists {printable(str(name))}, which is not a {suffix} file in the same folder")
        names.add(name)
    missing = sorted(name for name in names if not (folder / name).is_file())
    if missing:
        more = f" and {len(missing) - 1} more, which are" if len(missing) > 1 else ", which is"
        raise ModelError(f"{path}: lists {printable(missing[0])}{more} missing; download the model again")
    return [folder / name for name in sorted(names)]


def _found_instead(folder: Path) -> str:
    """What a folder that is no model contains, and what to do, for the end of a message; "" where that is unknown."""
    if instead := recognise_folder(folder):
        kind, path = instead
        return f"; it contains {kind.what} ({path.name}): {kind.advice_for(path)}"
    if (folder / DEEPSPEED_SCRIPT).is_file():
        return f"; it is a checkpoint of DeepSpeed: convert it with `mlxgen convert {shlex.quote(str(folder))}`"
    if inner := inner_models(folder):
        return f"; give one of the model folders in it, such as {inner[-1]}"
    if inner := inner_adapters(folder):
        option = f"--adapter {shlex.quote(str(inner[-1]))}"
        return f"; it contains adapters: give the model that they belong to, and one of them, as in `{option}`"
    return ""


def adapter_base(folder: Path) -> str:
    """The model that an adapter was trained on, from PEFT's or mlx-lm's adapter_config.json; "" if it does not say."""
    try:
        entries = read_json(folder / ADAPTER_CONFIG)
    except ModelError:
        entries = {}
    base = entries.get("base_model_name_or_path") or entries.get("model")
    return base if isinstance(base, str) and base.isprintable() and len(base) <= LONGEST_NAME else ""


def unused_adapter(folder: Path) -> str | None:
    """The warning for a folder with a whole model and an adapter besides, which is not applied to it."""
    if not (folder / ADAPTER_CONFIG).is_file():
        return None
    return f"{folder}: also holds an adapter, which is not applied; `--adapter {shlex.quote(str(folder))}` applies it"


def inner_adapters(folder: Path) -> list[Path]:
    """The folders in this one that hold an adapter, such as checkpoints of a training run."""
    return folders_with(folder, [f"*/{ADAPTER_CONFIG}"])
