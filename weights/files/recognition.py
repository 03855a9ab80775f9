"""What a file or folder is that is no model folder: recognised by its first bytes, its name or its files.

Each kind says what opens it. A kind with ``opened_by_convert`` has a reader in `mlxgen.weights.sources`.
"""

from __future__ import annotations

import shlex
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

FIRST_BYTES = 16
PYTORCH = "a PyTorch checkpoint"
TENSORFLOW = "a TensorFlow checkpoint"
LLMC = "a checkpoint of llm.c"
FLAX = "a file of Flax weights"
#: Files that training leaves beside the weights.
NOT_WEIGHTS = (
    "training_args.bin",
    "optimizer*.pt",
    "optimizer*.bin",
    "scheduler*.pt",
    "scheduler*.bin",
    "scaler.pt",
    "rng_state*.pth",
    "random_states_*.pkl",
    "meta.pkl",
)
CONVERT = "convert it with `mlxgen convert {path}`"
#: The other files that llm.c writes or reads, by the number that they begin with.
OTHER_LLMC_FILES = {
    20240327: "a debug state of llm.c",
    20240328: "a tokenizer of llm.c",
    20240520: "a file of tokens for llm.c",
    20240522: "an evaluation file of llm.c",
    20240527: "an optimizer state of llm.c",
    20240801: "a file of tokens for llm.c",
    20240803: "a Llama checkpoint of llm.c",
}
TABLE_END = (0xDB4775248B80FB57).to_bytes(8, "little")  # of LevelDB's tables
GGUF = "a GGUF file of llama.cpp"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file. what: its name, in words. advice: what opens it; {path} is the file, {folder} is the file's, both
    as the shell takes them.

    is_one: whether a file is of this kind, by its path and first bytes. patterns: its usual names, by which it is found
    in a folder.
    """

    what: str
    advice: str
    is_one: Callable[[Path, bytes], bool]
    patterns: tuple[str, ...]
    opened_by_convert: bool = False

    def advice_for(self, path: Path) -> str:
        return self.advice.format(path=shlex.quote(str(path)), folder=shlex.quote(str(path.parent)))


def _begins(*beginnings: bytes) -> Callable[[Path, bytes], bool]:
    return lambda path, first: first.startswith(beginnings)


def _ends(*suffixes: str) -> Callable[[Path, bytes], bool]:
    return lambda path, first: path.name.lower().endswith(suffixes)


def _is_tensorflow(path: Path, first: bytes) -> bool:
    pieces = ("*.index", "*.data-*-of-*", "*.ckpt*.meta", "model-*.meta")
    return first.startswith(b"model_checkpoint_path") or any(path.match(piece) for piece in pieces)


def _is_first_tensorflow(path: Path, first: bytes) -> bool:
    """A checkpoint of version 1: a single file, a table whose first key is empty."""
    if not first.startswith(b"\0\0"):
        return False
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - len(TABLE_END)))
        return file.read() == TABLE_END


def _is_pytorch(path: Path, first: bytes) -> bool:
    """PyTorch's zip file, or the pickle it was before version 1.6."""
    if first.startswith(b"PK\x03\x04"):
        names = _names_in_zip(path)
        damaged = not names and path.suffix != ".zip"  # the list is at the end
        return (damaged or any(name.endswith("/data.pkl") for name in names)) and path.suffix != ".ot"
    return first[:1] == b"\x80" and first[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


def _is_rust(path: Path, first: bytes) -> bool:
    return path.suffix == ".ot"


def _is_numpy(path: Path, first: bytes) -> bool:
    in_zip = first.startswith(b"PK\x03\x04") and any(name.endswith(".npy") for name in _names_in_zip(path))
    return in_zip or first.startswith(b"\x93NUMPY") or path.suffix in (".npz", ".npy")


def _is_archive(path: Path, first: bytes) -> bool:
    return first.startswith((b"PK\x03\x04", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf")) or path.suffix == ".tar"


def _names_in_zip(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return []


#: from_pretrained(…, from_tf=True) fails in the last versions of transformers 4.
FROM_HDF5 = (
    "in an environment of its own, `pip install 'transformers<5' torch tensorflow tf-keras` and `python -c "
    '"import sys; from transformers import GPT2Config as C, GPT2LMHeadModel as M; '
    "from transformers.modeling_tf_pytorch_utils import load_tf2_checkpoint_in_pytorch_model as load; "
    "load(M(C.from_pretrained(sys.argv[1])), sys.argv[2]).save_pretrained('OUT')\" {folder} {path}` "
    "turn it into safetensors; then `mlxgen convert OUT --vocab {folder}`"
)

#: In the order in which they are tried.
KINDS = (
    Kind(
        "a safetensors file",
        "give the folder that contains it and config.json, or convert it with `mlxgen convert {path} --config FILE`",
        lambda path, first: first[8:9] == b"{" and int.from_bytes(first[:8], "little") < 1 << 32,
        ("*.safetensors",),
        opened_by_convert=True,
    ),
    Kind(
        GGUF,
        CONVERT,
        lambda path, first: first.startswith(b"GGUF") or path.suffix == ".gguf",
        ("*.gguf", "*.bin"),
        opened_by_convert=True,
    ),
    Kind(
        "a file of llama.cpp from before GGUF",
        "use a GGUF file, or the Hugging Face model that it was made from",
        _begins(b"lmgg", b"fmgg", b"tjgg", b"algg"),
        ("*.bin",),
    ),
    Kind(
        LLMC,
        CONVERT,
        _begins((20240326).to_bytes(4, "little")),
        ("*.bin",),
        opened_by_convert=True,
    ),
    *(
        Kind(
            what,
            "give the file of weights, such as gpt2_124M.bin or model_00001000.bin",
            _begins(magic.to_bytes(4, "little")),
            ("*.bin",),
        )
        for magic, what in OTHER_LLMC_FILES.items()
    ),
    Kind(
        "TensorFlow weights in HDF5",
        FROM_HDF5,
        lambda path, first: first.startswith(b"\x89HDF\r\n") or path.suffix == ".h5",
        ("tf_model.h5", "*.h5"),
    ),
    Kind(
        TENSORFLOW,
        CONVERT,
        _is_tensorflow,
        (
            "checkpoint",
            "*.ckpt*.index",
            "model-*.index",
            "ckpt-*.index",
            "*.ckpt*.data-*",
            "model-*.data-*",
            "*.ckpt*.meta",
        ),
        opened_by_convert=True,
    ),
    Kind(
        "a TensorFlow checkpoint of version 1",
        "restore it and save it with TensorFlow's tf.compat.v1.train.Saver, which writes version 2, and convert that",
        _is_first_tensorflow,
        ("*.ckpt", "*.ckpt-*", "model-*"),
    ),
    Kind(
        "a TensorFlow program",
        "give the checkpoint that it was exported from",
        lambda path, first: path.name == "saved_model.pb",
        ("saved_model.pb",),
    ),
    Kind(
        FLAX,
        CONVERT,
        _ends(".msgpack"),
        ("flax_model.msgpack", "*.msgpack"),
        opened_by_convert=True,
    ),
    Kind(
        "an ONNX program",
        "give the checkpoint that it was exported from",
        _ends(".onnx"),
        ("*.onnx",),
    ),
    Kind(
        "a weights file of rust-bert",
        "give pytorch_model.bin of the same model",
        _is_rust,
        ("*.ot",),
    ),
    Kind(
        "a TensorFlow Lite program",
        "give the checkpoint that it was exported from",
        lambda path, first: first[4:8] == b"TFL3" or path.suffix == ".tflite",
        ("*.tflite",),
    ),
    Kind(
        "a web page",
        "the download went wrong: fetch the file itself, for example with `hf download`",
        lambda path, first: first.lstrip().lower().startswith((b"<!doctype", b"<html")),
        (),
    ),
    Kind(
        PYTORCH,
        CONVERT,
        _is_pytorch,
        ("pytorch_model*.bin", "ckpt.pt", "model.pt", "*.pt", "*.pth", "*.ckpt", "*.bin"),
        opened_by_convert=True,
    ),
    Kind(
        "a file of NumPy arrays",
        "save the model's state dict with PyTorch or safetensors",
        _is_numpy,
        ("*.npz", "*.npy"),
    ),
    Kind(
        "an archive",
        "unpack it, and give the folder",
        _is_archive,
        (),
    ),
)


def recognise_file(path: Path) -> Kind | None:
    """The kind of a file, or None for a kind that is not in the table."""
    try:
        with path.open("rb") as file:
            first = file.read(FIRST_BYTES + 8)
    except OSError:
        return None
    return next((kind for kind in KINDS if kind.is_one(path, first)), None)


def is_left_by_training(path: Path) -> bool:
    """Whether the file's name is one that trainers give the state of an optimizer, and such, beside the weights."""
    return any(path.match(name) for name in NOT_WEIGHTS)


def recognise_folder(folder: Path) -> tuple[Kind, Path] | None:
    """The first kind of the table that a file of the folder has, and the file. Training's leftovers are passed over."""
    for kind in KINDS:
        for pattern in kind.patterns:
            for path in sorted(folder.glob(pattern)):
                if not is_left_by_training(path) and path.is_file() and recognise_file(path) is kind:
                    return kind, path
    return None


def inner_models(folder: Path) -> list[Path]:
    """The folders in this one that have a config: checkpoints of a training run, or revisions in a cache."""
    names = ("*/config.json", "snapshots/*/config.json", "*/hparams.json")  # the last of OpenAI's, and of gpt-2-simple
    return folders_with(folder, names)


def folders_with(folder: Path, names: Sequence[str]) -> list[Path]:
    """The folders in this one that hold a file of one of these names, the oldest first."""
    places = [path.parent for name in names for path in folder.glob(name)]
    return sorted(places, key=lambda place: place.stat().st_mtime)
