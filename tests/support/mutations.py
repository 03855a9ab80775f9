"""Damaged files, always the same ones: a reader must answer each with an error of one line, or with a result."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

from mlxgen.errors import MlxgenError

NUMBERS = (b"-1", b"0", b"1e999", b"99999999999999999999", b"9" * 5000, b"NaN", b"null", b"[]", b'"x"', b"{}")


def truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 8))):
        changed[_place(data, rng)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def insert(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + rng.randbytes(rng.choice((1, 4, 100))) + data[at:]


def remove(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + data[at + rng.choice((1, 4, 100)) :]


def repeat(data: bytes, rng: random.Random) -> bytes:
    begin = _place(data, rng)
    part = data[begin : begin + rng.randrange(1, 60)]
    return data[:begin] + part * rng.choice((2, 50)) + data[begin:]


def swap_lengths(data: bytes, rng: random.Random) -> bytes:
    """Another number in place of four or eight bytes, as of a length or an offset."""
    width, at = rng.choice((4, 8)), _place(data, rng)
    number = rng.choice((0, 1, len(data), len(data) * 2, 2**31 - 1, 2**31, 2 ** (8 * width) - 1))
    return data[:at] + number.to_bytes(width, "little") + data[at + width :]


def exchange_value(data: bytes, rng: random.Random) -> bytes:
    """A strange value in place of a number or text in JSON."""
    places = [at for at in range(1, min(len(data), 20_000)) if data[at - 1 : at] in (b":", b",", b"[", b" ")]
    if not places:
        return flip(data, rng)
    at = rng.choice(places)
    end = next((end for end in range(at, len(data)) if data[end : end + 1] in (b",", b"}", b"]", b"\n")), len(data))
    return data[:at] + rng.choice(NUMBERS) + data[end:]


MUTATIONS = (truncate, flip, insert, remove, repeat, swap_lengths, exchange_value, exchange_value)


def mutations(data: bytes, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """``count`` damaged versions of some bytes, each with a name that tells how it was made."""
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        changed = data
        names = []
        for mutate in rng.choices(MUTATIONS, k=rng.choice((1, 1, 2))):
            changed, names = (mutate(changed, rng) if changed else changed), [*names, mutate.__name__]
        yield f"{number}: {', '.join(names)}", changed


def refused_or_read(file: Path, data: bytes, count: int, read: Callable[[], object], *, seed: int = 0) -> int:
    """Write damaged versions of ``data`` to ``file`` and read each. Returns how many were refused.

    An error must be a MlxgenError of one line of at most 2,000 characters that names the file or its folder.
    """
    refused = 0
    for name, changed in mutations(data, count, seed):
        file.write_bytes(changed)
        try:
            read()
        except MlxgenError as error:
            message = str(error)
            assert "\n" not in message and len(message) <= 2000, f"{file.name} {name}: {message[:300]}"
            assert file.name in message or str(file.parent) in message, f"{file.name} {name}: {message}"
            refused += 1
        except BaseException as error:
            raise AssertionError(f"{file.name} {name}: {type(error).__name__}: {str(error)[:300]}") from error
    file.write_bytes(data)
    return refused


def _place(data: bytes, rng: random.Random) -> int:
    """A place to change; half of them near the beginning, where headers are."""
    return rng.randrange(min(len(data), rng.choice((256, len(data)))))
