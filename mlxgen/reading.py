"""The one door to untrusted files: whatever a library raises while reading one becomes a ModelError with its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlxgen.errors import MlxgenError, ModelError, reason_of

LONGEST = 2000  # characters of a message; a file may put megabytes into a library's error
PANIC = "PanicException"  # of libraries in Rust; not an Exception


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Name ``path`` in every error of the block. Raises ModelError for what is not a MlxgenError already."""
    try:
        yield
    except MlxgenError as error:
        message = str(error)
        if isinstance(error, ModelError) and (str(path) not in message or len(message) > LONGEST):
            named = message if str(path) in message else f"{path}: {message}"
            raise ModelError(named[:LONGEST]) from None
        raise
    except MemoryError:
        raise ModelError(f"{path}: does not fit into memory") from None
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        raise ModelError(f"{path}: cannot be read ({reason_of(error)})") from error
