"""Session files: mlx-lm's prompt-cache format, with mlxgen's own entries in the metadata.

mlx-lm's `load_prompt_cache` and its commands open these files, and a cache that mlx-lm saved for the same model opens
here. Files are untrusted: the header is checked before any array is read, then the model, then a digest of the
contents.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from mlxgen.atomic_file import replacing_file
from mlxgen.errors import MlxgenError, OptionError, printable, reason_of
from mlxgen.generation.context import ContextState
from mlxgen.generation.fingerprint import array_bytes, fingerprint
from mlxgen.generation.request import ContextOptions
from mlxgen.generation.sliding import Slide
from mlxgen.lfs_pointer import check_not_pointer
from mlxgen.model import Model
from mlxgen.network.cache import KVCache, RotatingKVCache
from mlxgen.safetensors_header import HeaderError, read_header

SUFFIX = ".safetensors"  # mlx-lm recognizes the format by it
FORMAT = "2"
FIRST_CLASS = "1.0"  # the metadata entry that names the first layer's class in a prompt cache
MOST_PARTS = 8  # of a name such as "0.options.keep"
S = TypeVar("S")
CLASSES: Mapping[str, Callable[..., Any]] = {"KVCache": KVCache, "RotatingKVCache": RotatingKVCache}


class SessionFileError(MlxgenError):
    """A session file that cannot be read or written, or that belongs to another model."""


def write(state: ContextState, model: Model, path: str | Path, notes: Mapping[str, Any] | None = None) -> Path:
    """Save a session's state; returns the path, with .safetensors added if it is missing. Raises SessionFileError.

    notes: JSON data that read() returns. The file is written beside its place and then renamed, so that an older file
    stays intact until the new one is complete. Only a session or an mlx-lm prompt cache is replaced.
    """
    path = _with_suffix(Path(path))
    _check_place(path)
    for layer in state.cache:
        if type(layer).__name__ not in CLASSES:
            raise OptionError(f"a session on a {type(layer).__name__} cannot be saved; use mlxgen's own cache")
    scalars: list[Any] = [""]  # mlx-lm's list of entries that are not arrays; it begins with an empty entry
    arrays: dict[str, mx.array] = {}
    for name, value in tree_flatten([_layer_state(layer) for layer in state.cache]):
        if not isinstance(value, mx.array):
            scalars.append((name, "none" if value is None else "scalar"))
        arrays[name] = value if isinstance(value, mx.array) else mx.array([] if value is None else value)
    own = {
        "mlxgen": FORMAT,
        "model": model.source or model.name,  # this and tokenizer_config are for mlx-lm's commands
        "tokenizer_config": "{}",
        "model_name": model.label,
        "fingerprint": fingerprint(model),
        "tokens": json.dumps(state.tokens, separators=(",", ":")),
        "session": json.dumps(_facts(state)),
        "notes": json.dumps(dict(notes or {})),
    }
    own["digest"] = _digest(arrays, own)
    metadata = dict(tree_flatten([own, [type(layer).__name__ for layer in state.cache], scalars]))
    try:
        with replacing_file(path) as part:
            mx.save_safetensors(str(part), arrays, cast(dict[str, str], metadata))
            _check_complete(part)
    except (OSError, RuntimeError, ValueError) as error:
        raise SessionFileError(f"cannot save the session to {path}: {reason_of(error)}") from None
    return path


def read(path: str | Path, model: Model, build: Callable[[ContextState], S]) -> tuple[S, dict[str, Any]]:
    """Read a session file; returns build(state) and the saved notes.

    Raises SessionFileError with the reason, also if `build` raises ValueError.
    """
    path = Path(path)
    if not os.path.exists(path):  # unlike Path.exists, it never raises
        path = _with_suffix(path)
    check_not_pointer(path)
    try:
        read_header(path)
        loaded = cast(
            tuple[dict[str, mx.array], dict[str, str]], mx.load(str(path), "safetensors", return_metadata=True)
        )
        arrays, metadata = loaded
        mx.eval(arrays)
    except OSError as error:
        raise SessionFileError(f"cannot open the session file {path}: {reason_of(error)}") from None
    except (HeaderError, RuntimeError, ValueError) as error:
        _refuse(path, f"not a readable session file ({reason_of(error)})")
    try:
        most = len(metadata) + len(arrays)
        _check_names(path, [*metadata, *arrays], most)
        entries = tree_unflatten(list(metadata.items()))
        own, classes, scalars = entries[:3] if entries and isinstance(entries, list) else [{}] * 3
        if not classes:
            _refuse(path, "it is not a session file: it has no prompt cache")
        scalars = list(scalars)[1:]
        _check_names(path, [name for name, _ in scalars], most)
        states = _states(arrays, scalars)
        if "mlxgen" in own:
            _check_own(path, model, arrays, own)
        cache = _caches(path, model, [str(name) for name in classes], states)
        state = _own_state(cache, own) if "mlxgen" in own else _foreign_state(cache)
        return build(state), json.loads(own["notes"]) if "mlxgen" in own else {}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        _refuse(path, f"its entries are not a valid session ({reason_of(error)})")


def _check_names(path: Path, names: Sequence[str], most: int) -> None:
    """Refuse names such as "1.99999999", of which tree_unflatten would make a list longer than `most`."""
    for name in names:
        parts = name.split(".")
        if len(parts) > MOST_PARTS or any(len(part) > 9 and part[:1].isdecimal() for part in parts):
            _refuse(path, f"its entry {printable(name)} is not one of a session")
        if any(part.isdecimal() and int(part) > most for part in parts):
            _refuse(path, f"its entry {printable(name)} is not one of a session")


def _check_own(path: Path, model: Model, arrays: Mapping[str, mx.array], own: Mapping[str, str]) -> None:
    if own["mlxgen"] != FORMAT:
        _refuse(path, "it was written by another version of mlxgen")
    if own.get("fingerprint") != fingerprint(model):
        _refuse(
            path, f"it belongs to another model ({printable(str(own.get('model_name')), 200)}), not to {model.label}"
        )
    if own.get("digest") != _digest(arrays, own):
        _refuse(path, "its contents were changed after it was saved")


def _facts(state: ContextState) -> dict[str, Any]:
    """The entries of the state that are stored as JSON, except the tokens."""
    return {name: value for name, value in asdict(replace(state, cache=[])).items() if name not in ("cache", "tokens")}


def _own_state(cache: list[Any], own: Mapping[str, str]) -> ContextState:
    facts = json.loads(own["session"])
    facts["options"] = ContextOptions(**facts["options"])
    facts["slide"] = Slide(**facts["slide"]) if facts["slide"] else None
    facts["slide_points"] = [int(at) for at in facts["slide_points"]]
    return ContextState(tokens=json.loads(own["tokens"]), cache=cache, **facts)


def _foreign_state(cache: list[Any]) -> ContextState:
    """The state for a cache whose tokens are unknown: it can be extended, but cannot slide or be rewound."""
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
    """A layer's state without the unused part of its buffers."""
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
    """The cache of each layer, checked, in the number type of the model."""
    config, dtype = model.config, model.decoder.compute_dtype
    if not config.n_layer == len(classes) == len(states):
        _refuse(path, f"it belongs to another model: it has {len(states)} layers, {model.name} has {config.n_layer}")
    caches = []
    for name, state in zip(classes, states, strict=True):
        if name not in CLASSES:
            _refuse(path, f"it has a {printable(name)}; only {' and '.join(CLASSES)} can be opened")
        rotating = name == "RotatingKVCache"
        keys, values, *numbers = state
        if len(numbers) != (4 if rotating else 1) or not all(type(number) is int for number in numbers):
            _refuse(path, "its positions are invalid")
        offset, length = numbers[0], 0 if keys is None else keys.shape[2] if keys.ndim == 4 else -1
        expected = (1, config.n_head, length, config.head_dim)
        if keys is not None and not (keys.dtype == values.dtype and mx.issubdtype(keys.dtype, mx.floating)):
            _refuse(path, "its keys and values are not floating-point numbers of one type")
        if keys is not None and not keys.shape == values.shape == expected:
            _refuse(path, f"it belongs to another model: its keys are {keys.shape}, not {expected}")
        if not 0 <= offset <= config.n_positions or offset != states[0][2]:
            _refuse(path, f"its position {offset} is invalid for the model's table of {config.n_positions}")
        if rotating:
            _, keep, size, at = numbers
            fits = at <= size if length <= size else at == length
            if not (0 <= keep < size and at >= 0 and fits and length >= min(offset, size)):
                _refuse(path, "the entries of its rotating cache contradict each other")
            cache: Any = RotatingKVCache(size, keep)
        else:
            if length < offset:
                _refuse(path, f"it should have {offset} positions and has {length}")
            cache = KVCache()
        if keys is not None:
            cache.state = (keys.astype(dtype), values.astype(dtype), *numbers)
        if rotating:
            cache._rewound = offset >= cache.max_size  # the file does not say, so assume it: nothing can be trimmed
        caches.append(cache)
    return caches


def _check_complete(path: Path) -> None:
    """Raise OSError if the file is incomplete, as on a full disk."""
    try:
        read_header(path)
    except HeaderError:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None


def _check_place(path: Path) -> None:
    """Raise SessionFileError if another kind of file, such as weights, would be replaced. Empty files may be."""
    try:
        if os.path.exists(path) and not os.path.isdir(path) and not os.path.isfile(path):
            _refuse(path, "is a pipe or a device, not a file")
        if path.is_file() and path.stat().st_size and FIRST_CLASS not in read_header(path).metadata:
            raise HeaderError("no prompt cache")
    except OSError as error:
        raise SessionFileError(f"cannot save the session to {path}: {reason_of(error)}") from None
    except HeaderError:
        _refuse(path, "it exists and is not a session file, so it is not replaced; choose another name")


def _digest(arrays: Mapping[str, mx.array], own: Mapping[str, str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(own):
        if name != "digest":
            digest.update(f"{name}={own[name]}\n".encode())
    for name in sorted(arrays):
        digest.update(name.encode() + array_bytes(arrays[name]))
    return digest.hexdigest()


def _with_suffix(path: Path) -> Path:
    if not path.name:
        _refuse(path, "is a folder; give the name of a file")
    return path if path.suffix == SUFFIX else path.with_name(path.name + SUFFIX)


def _refuse(path: Path, reason: str) -> NoReturn:
    raise SessionFileError(f"{path}: {reason}")
