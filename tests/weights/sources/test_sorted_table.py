"""Tables in LevelDB's format are read as they were written, and damaged or dishonest ones are refused."""

from __future__ import annotations

import pytest

from mlxgen.weights.sources.sorted_table import TableError, read_table

from ...support.leveldb_tables import block, entry, table


def test_blocks_and_shared_beginnings_of_keys() -> None:
    first = block(entry(0, b"", b"head"), entry(0, b"model/wpe", b"1"), entry(7, b"te", b"22"), restarts=1)
    second = block(entry(0, b"x", b""))
    assert read_table(table(first, second)) == {b"": b"head", b"model/wpe": b"1", b"model/wte": b"22", b"x": b""}
    assert read_table(table()) == {}


ENTRY = entry(0, b"a", b"b")
BAD = {
    "nothing": (b"", "not a complete"),
    "no magic": (table(block(ENTRY))[:-1] + b"?", "not a complete"),
    "cut off": (table(block(ENTRY))[-60:], "not a complete"),
    "snappy": (table(block(ENTRY, compression=1)), "compressed with snappy"),
    "another compression": (table(block(ENTRY, compression=9)), "compressed with method 9"),
    "a wrong checksum": (table(block(ENTRY)).replace(b"ab", b"ac", 1), "checksum of a block"),
    "a block outside the file": (table(block(ENTRY), places=[(1 << 60, 5)]), "not a complete"),
    "a block longer than the file": (table(block(ENTRY), places=[(0, 1 << 62)]), "not a complete"),
    "the same block twice": (table(block(ENTRY), places=[(0, len(block(ENTRY)) - 5)] * 2), "overlap"),
    "keys in another order": (table(block(entry(0, b"b", b""), ENTRY)), "not in order"),
    "a key twice": (table(block(ENTRY, ENTRY)), "not in order"),
    "a key that shares what is not there": (table(block(ENTRY, entry(9, b"c", b""))), "not a complete"),
    "a key far too long": (table(block(entry(0, b"k" * 301, b""))), "not a complete"),
    "far too many keys": (
        table(block(entry(0, b"k" * 296, b""), *(b"\xa8\x02\4\0" + at.to_bytes(4, "big") for at in range(20_000)))),
        "far too many",
    ),
    "a value longer than its block": (table(block(b"\0\1\x7fab")), "not a complete"),
    "more places of whole keys than bytes": (table(block(ENTRY, said=2**32 - 1)), "not a complete"),
    "a number without an end": (table(block(b"\xff" * 20)), "not a complete"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tables_are_refused(case: str) -> None:
    data, told = BAD[case]
    with pytest.raises(TableError, match=told):
        read_table(data)
