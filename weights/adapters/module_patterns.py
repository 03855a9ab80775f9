"""Patterns of module names in an untrusted adapter_config.json, matched as PEFT does, in bounded time."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from typing import Generic, TypeVar

from mlxgen.errors import ModelError, printable

MOST_PATTERNS = 2000
LONGEST = 500  # characters
NAME = 40  # about the longest name of a module, in characters
MOST_STEPS = 200_000  # that one name may take, estimated
ESCAPED = re.compile(r"\\.", re.DOTALL)
REPEAT = re.compile(r"[*+{]|(?<!\()\?")
REPEATED_GROUP = re.compile(r"\)[*+{]")
V = TypeVar("V")


class ModulePatterns(Generic[V]):
    """The values of modules by patterns: the first pattern that matches the end of a module's name counts."""

    def __init__(self, name: str, values: Mapping[str, V]) -> None:
        """name: the entry, for errors. Raises ModelError for patterns that could take too long."""
        if len(values) > MOST_PATTERNS:
            raise ModelError(f"{name} has {len(values):,} patterns, more than the {MOST_PATTERNS:,} that are read")
        steps = 0.0
        for pattern in values:
            steps += _steps(pattern)
            if steps > MOST_STEPS:
                raise ModelError(f"{name}: {printable(pattern)!r} could take far too long to match")
        self._patterns = [(_compiled(name, pattern), value) for pattern, value in values.items()]

    def get(self, module: str, default: V) -> V:
        """The value of a module, such as "transformer.h.0.attn.c_attn"."""
        return next((value for pattern, value in self._patterns if pattern.match(module)), default)


def _steps(pattern: str) -> float:
    """About how many steps a pattern takes at most, since the engine tries every way to match."""
    plain = ESCAPED.sub("x", pattern[:LONGEST])
    if len(pattern) > LONGEST or REPEATED_GROUP.search(plain):
        return math.inf
    repeats = min(len(REPEAT.findall(plain)), 9)
    places = plain.count("(") + 1  # that may have alternatives; they are the most where the places have equally many
    return float(NAME**repeats * (plain.count("|") / places + 1) ** places)


def _compiled(name: str, pattern: str) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings(action="ignore"):  # about patterns that may change their meaning
            return re.compile(rf"(.*\.)?({pattern})$")
    except (re.error, ValueError, OverflowError, RecursionError):
        raise ModelError(f"{name}: {printable(pattern)!r} is not a pattern") from None
