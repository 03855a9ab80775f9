"""The entries of an untrusted adapter_config.json, each checked for its type. Every error is a ModelError."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mlxgen.errors import ModelError
from mlxgen.json_file import describe

LARGEST = 1e9
MOST_RANK = 1 << 16


def rank(name: str, value: Any) -> int:
    """A rank: a whole number."""
    if type(value) is not int or not 1 <= value <= MOST_RANK:
        raise ModelError(f"{name} is {describe(value)}; it must be a whole number from 1 to {MOST_RANK}")
    return value


def number(name: str, value: Any) -> float:
    """A number of a reasonable size."""
    if type(value) not in (int, float) or not -LARGEST <= value <= LARGEST or math.isnan(value):
        raise ModelError(f"{name} is {describe(value)}; it must be a number")
    return float(value)


def flag(entries: Mapping[str, Any], name: str) -> bool:
    """A switch that is off unless it is set."""
    value = entries.get(name)
    if value is None:
        return False
    if type(value) is not bool:
        raise ModelError(f"{name} is {describe(value)}; it must be true or false")
    return value


def mapping(entries: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object; a missing one is empty."""
    value = entries.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ModelError(f"{name} is {describe(value)}; it must be an object")
    return value


def names(entries: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A list of names; a missing one is empty."""
    value = entries.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ModelError(f"{name} is {describe(value)}; it must be a list of names")
    return tuple(value)


def whole_numbers(name: str, value: Any) -> list[int]:
    """A list of whole numbers."""
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise ModelError(f"{name} is {describe(value)}; it must be a list of token ids")
    return value
