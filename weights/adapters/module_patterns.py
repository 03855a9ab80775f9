"""Patterns of module names in an untrusted adapter_config.json, matched as PEFT does, in bounded time."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Generic, TypeVar

from mlxgen.errors import ModelError, printable

MOST_PATTERNS = 2000
LONGEST = 500  # characters
MOST_REPEATS = 3  # of which each multiplies the time that a name takes
REPEAT = re.compile(r"(?<!\\)[*+{]")
REPEATED_GROUP = re.compile(r"\)[*+{]")
V = TypeVar("V")


class ModulePatterns(Generic[V]):
    """The values of modules by patterns: the first pattern that matches the end of a module's name counts."""

    def __init__(self, name: str, values: Mapping[str, V]) -> None:
        """name: the entry, for errors. Raises ModelError for patterns that could take too long."""
        if len(values) > MOST_PATTERNS:
            raise ModelError(f"{name} has {len(values):,} patterns, more than the {MOST_PATTERNS:,} that are read")
        self._patterns = [(_compiled(name, pattern), value) for pattern, value in values.items()]

    def get(self, module: str, default: V) -> V:
        """The value of a module, such as "transformer.h.0.attn.c_attn"."""
        return next((value for pattern, value in self._patterns if pattern.match(module)), default)


def _compiled(name: str, pattern: str) -> re.Pattern[str]:
    slow = len(REPEAT.findall(pattern)) > MOST_REPEATS or REPEATED_GROUP.search(pattern)
    try:
        if slow or len(pattern) > LONGEST:
            raise ValueError("it repeats too much")
        with warnings.catch_warnings(action="ignore"):  # about patterns that may change their meaning
            return re.compile(rf"(.*\.)?({pattern})$")
    except (re.error, ValueError, OverflowError, RecursionError):
        raise ModelError(f"{name}: {printable(pattern)!r} is not a pattern that mlxgen reads") from None
