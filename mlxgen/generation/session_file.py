"""A session in a file: mlx-lm's prompt-cache format, with what mlxgen knows besides in the file's metadata.

mlx-lm's `load_prompt_cache` opens these files, and a cache that mlx-lm saved for the same model opens here. Nothing in
a file is believed: its header is checked before an array is read, then the model, then a digest over the contents.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from mlxgen.errors import MlxgenError, OptionError
from mlxgen.generation.context import ContextState
from mlxgen.generation.fingerprint import array_bytes, fingerprint
from mlxgen.generation.request import ContextOptions
from mlxgen.generation.sliding import Slide
from mlxgen.model import Model
from mlxgen.network.cache import KVCache, RotatingKVCache

SUFFIX = ".safetensors"  # mlx-lm tells the format by it
FORMAT = "1"
MAX_HEADER = 64 << 20  # bytes
ITEM_SIZES = {
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U8": 1,
    "BOOL": 1,
}
S = TypeVar("S")
CLASSES: Mapping[str, Callable[..., Any]] = {"KVCache": KVCache, "RotatingKVCache": RotatingKVCache}


class SessionFileError(MlxgenError):
    """A session file that cannot be read or written, or that belongs to another model."""


def write(state: ContextState, model: Model, path: str | Path, notes: Mapping[str, Any] | None = None) -> Path:
    """Save a session's state; returns the path, to which .safetensors is added where it is missing.

    notes: what the caller wants back from read(), as JSON. The file is written beside its place and renamed into it,
    so that an older one there stays whole until the new one is. Only a session or an mlx-lm prompt cache is replaced.
    Raises SessionFileError.
    """
    path = _with_suffix(Path(path))
    _check_place(path)
    for layer in state.cache:
        if type(layer).__name__ not in CLASSES:
            raise OptionError(f"a session on a {type(layer).__name__} cannot be saved; use mlxgen's own cache")
    scalars: list[Any] = [""]  # mlx-lm's list of which arrays are none; it starts with an empty entry
    arrays: dict[str, mx.array] = {}
    for name, value in tree_flatten([_layer_state(layer) for layer in state.cache]):
        if not isinstance(value, mx.array):
            scalars.append((name, "none" if value is None else "scalar"))
        arrays[name] = value if isinstance(value, mx.array) else mx.array([] if value is None else value)
    own = {
        "mlxgen": FORMAT,
        "model": fingerprint(model),
        "model_name": model.name,
        "tokens": json.dumps(state.tokens, separators=(",", ":")),
        "session": json.dumps(_facts(state)),
        "notes": json.dumps(dict(notes or {})),
    }
    own["digest"] = _digest(arrays, own)
    metadata = dict(tree_flatten([own, [type(layer).__name__ for layer in state.cache], scalars]))
    part = path.with_name(f".{path.stem}.{os.getpid()}.part{SUFFIX}")
    _sweep(path)
    try:
        mx.save_safetensors(str(part), arrays, cast(dict[str, str], metadata))
        if not _is_whole(part):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
        raise SessionFileError(f"cannot save the session to {path}: {reason}") from None
    finally:
        part.unlink(missing_ok=True)
    return path


def read(path: str | Path, model: Model, build: Callable[[ContextState], S]) -> tuple[S, dict[str, Any]]:
    """What `build` makes of the saved state, and the notes that were saved with it.

    Raises SessionFileError with the reason, also where `build` raises ValueError.
    """
    path = Path(path)
    if not path.exists():
        path = _with_suffix(path)
    try:
        _check_header(path)
        loaded = cast(
            tuple[dict[str, mx.array], dict[str, str]], mx.load(str(path), "safetensors", return_metadata=True)
        )
        arrays, metadata = loaded
        mx.eval(arrays)
    except OSError as error:
        raise SessionFileError(f"cannot open the session file {path}: {error.strerror or error}") from None
    except RuntimeError as error:
        _refuse(path, f"it cannot be read ({str(error).splitlines()[0]})")
    try:
        entries = tree_unflatten(list(metadata.items()))
        own, classes, scalars = entries[:3] if entries and isinstance(entries, list) else [{}] * 3
        if not classes:
            _refuse(path, "it holds weights or something else, and no prompt cache")
        states = _states(arrays, list(scalars)[1:])
        if "mlxgen" in own:
            _check_own(path, model, arrays, own)
        cache = _caches(path, model, [str(name) for name in classes], states)
        state = _own_state(cache, own) if "mlxgen" in own else _foreign_state(cache)
        return build(state), json.loads(own["notes"]) if "mlxgen" in own else {}
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        _refuse(path, f"its entries make no session ({error})")


def _check_own(path: Path, model: Model, arrays: Mapping[str, mx.array], own: Mapping[str, str]) -> None:
    if own["mlxgen"] != FORMAT:
        _refuse(path, "a newer mlxgen wrote it; upgrade to open it")
    if own.get("model") != fingerprint(model):
        _refuse(path, f"it belongs to another model ({own.get('model_name')}), not to {model.name}")
    if own.get("digest") != _digest(arrays, own):
        _refuse(path, "its contents were changed after it was saved")


def _facts(state: ContextState) -> dict[str, Any]:
    """The state's entries that JSON holds as they are."""
    return {name: value for name, value in asdict(replace(state, cache=[])).items() if name not in ("cache", "tokens")}


def _own_state(cache: list[Any], own: Mapping[str, str]) -> ContextState:
    facts = json.loads(own["session"])
    facts["options"] = ContextOptions(**facts["options"])
    facts["slide"] = Slide(**facts["slide"]) if facts["slide"] else None
    facts["slide_points"] = [int(at) for at in facts["slide_points"]]
    return ContextState(tokens=json.loads(own["tokens"]), cache=cache, **facts)


def _foreign_state(cache: list[Any]) -> ContextState:
    """A cache whose tokens nobody wrote down: it can be continued, but neither slide nor go back before its end."""
    first = cache[0]
    rotating = isinstance(first, RotatingKVCache)
    options = ContextOptions(first.max_size, first.keep) if rotating else ContextOptions()
    return ContextState(
        options=options,
        tokens=[],
        untracked=int(first.offset),
        processed=0,
        slide_keep=options.keep,
        slide_points=[],
        slides=0,
        slide=None,
        cache=cache,
    )


def _layer_state(layer: Any) -> tuple[Any, ...]:
    """A layer's state without the spare room of its buffers."""
    keys, values, *rest = layer.state
    if keys is None:
        return layer.state
    return keys[..., : layer.size(), :], values[..., : layer.size(), :], *rest


def _states(arrays: Mapping[str, mx.array], scalars: Sequence[Any]) -> list[list[Any]]:
    values: dict[str, Any] = dict(arrays)
    for name, kind in scalars:
        values[name] = None if kind == "none" else arrays[name].item() if kind == "scalar" else kind
    return [list(state) for state in tree_unflatten(list(values.items()))]


def _caches(path: Path, model: Model, classes: Sequence[str], states: Sequence[Sequence[Any]]) -> list[Any]:
    """One checked cache a layer, in the type the model computes in."""
    config, dtype = model.config, model.decoder.model.ln_f.weight.dtype
    if not config.n_layer == len(classes) == len(states):
        _refuse(path, f"it belongs to another model: it has {len(states)} layers, {model.name} has {config.n_layer}")
    caches = []
    for name, state in zip(classes, states, strict=True):
        if name not in CLASSES:
            _refuse(path, f"it holds a {name}; only {' and '.join(CLASSES)} can be opened")
        rotating = name == "RotatingKVCache"
        keys, values, *numbers = state
        if len(numbers) != (4 if rotating else 1) or not all(type(number) is int for number in numbers):
            _refuse(path, "its positions are not readable")
        offset, length = numbers[0], 0 if keys is None else keys.shape[2] if keys.ndim == 4 else -1
        expected = (1, config.n_head, length, config.head_dim)
        if keys is not None and not keys.shape == values.shape == expected:
            _refuse(path, f"it belongs to another model: its keys are {keys.shape}, not {expected}")
        if not 0 <= offset <= config.n_positions or offset != states[0][2]:
            _refuse(path, f"its {offset} positions do not fit the model's table of {config.n_positions}")
        if rotating:
            _, keep, size, at = numbers
            fits = at <= size if length <= size else at == length
            if not (0 <= keep < size and at >= 0 and fits and length >= min(offset, size)):
                _refuse(path, "its rotating cache contradicts itself")
            cache: Any = RotatingKVCache(size, keep)
        else:
            if length < offset:
                _refuse(path, f"it says {offset} positions and holds {length}")
            cache = KVCache()
        if keys is not None:
            cache.state = (keys.astype(dtype), values.astype(dtype), *numbers)
        if rotating:
            cache._rewound = offset >= cache.max_size  # it may have been; then its newest cannot be taken out again
        caches.append(cache)
    return caches


def _check_header(path: Path) -> None:
    """Refuse a file whose header is broken or whose arrays end elsewhere than the file does."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else MAX_HEADER + 1
        if length > min(MAX_HEADER, size - 8):
            _refuse(path, "it is cut short, or no session file")
        try:
            header = json.loads(file.read(length))
            entries = [entry for name, entry in header.items() if name != "__metadata__"]
            counts = [ITEM_SIZES[entry["dtype"]] * math.prod(entry["shape"]) for entry in entries]
            spans = [tuple(entry["data_offsets"]) for entry in entries]
            good = all(end - start == count >= 0 <= start for (start, end), count in zip(spans, counts, strict=True))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            good = False
    if not good:
        _refuse(path, "its header is damaged, or it is no session file")
    if max((end for _, end in spans), default=0) + 8 + length != size:
        _refuse(path, "it is cut short")


def _is_whole(path: Path) -> bool:
    """Whether all that was written has arrived; it has not on a full disk."""
    try:
        _check_header(path)
    except SessionFileError:
        return False
    return True


def _check_place(path: Path) -> None:
    """Refuse to replace what is no prompt cache, such as a model's weights. An empty file is nobody's work."""
    try:
        if not path.is_file() or path.stat().st_size == 0:
            return
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length <= MAX_HEADER else {}
        cache = "1.0" in header["__metadata__"]  # the first layer's class
    except OSError as error:
        raise SessionFileError(f"cannot save the session to {path}: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        cache = False
    if not cache:
        _refuse(path, "it exists and is no session file, so it is not replaced; choose another name")


def _sweep(path: Path) -> None:
    """Remove the parts that killed processes left of files for this place."""
    for part in path.parent.glob(f".{glob.escape(path.stem)}.*.part{SUFFIX}"):
        number = part.name.split(".")[-3]
        try:
            if number.isdecimal() and int(number) > 0:
                os.kill(int(number), 0)  # sends nothing, and fails where there is no such process
        except ProcessLookupError:
            with suppress(OSError):
                part.unlink()
        except (OSError, OverflowError):
            continue  # another user's process


def _digest(arrays: Mapping[str, mx.array], own: Mapping[str, str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(own):
        if name != "digest":
            digest.update(f"{name}={own[name]}\n".encode())
    for name in sorted(arrays):
        digest.update(name.encode() + array_bytes(arrays[name]))
    return digest.hexdigest()


def _with_suffix(path: Path) -> Path:
    return path if path.suffix == SUFFIX else path.with_name(path.name + SUFFIX)


def _refuse(path: Path, reason: str) -> NoReturn:
    raise SessionFileError(f"{path}: {reason}")
