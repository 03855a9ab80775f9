"""Objects of other programs' classes in a pickle: their fields are read, and their classes are never imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Record:
    """Stands for an object whose class is unknown, such as a config; keeps its fields and has no behaviour."""

    __slots__ = ("_state",)

    _state: Any

    def __setstate__(self, state: Any) -> None:
        self._state = state

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that the pickle gives, {} where it has anything else in their place."""
        state = getattr(self, "_state", None)  # a pickle makes objects without __init__
        if type(state) is tuple and len(state) == 2 and not state[0]:
            state = state[1]  # of a class with __slots__
        return state if type(state) is dict else {}


def fields_of(value: Any) -> Mapping[str, Any]:
    """The entries of a mapping, or the fields of a Record; {} for anything else."""
    if isinstance(value, Record):
        return value.fields
    return value if isinstance(value, Mapping) else {}
