"""The checksum equals the one by the definition, bit by bit, and is quick enough for the largest tensors."""

from __future__ import annotations

import numpy as np
import pytest

from mlxgen.weights.sources import crc32c as module
from mlxgen.weights.sources.crc32c import crc32c, masked_crc32c

from ...support.leveldb_tables import crc32c_by_bits


def test_the_check_value_of_the_published_catalogues() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA and crc32c(b"\xff" * 32) == 0x62A8AB43  # RFC 3720, B.4
    assert crc32c(bytes(range(32))) == 0x46DD794E and crc32c(b"") == 0


@pytest.mark.parametrize("block", [1, 4, 64])
def test_any_length_in_blocks_of_any_size(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_WORDS", block)
    data = np.random.default_rng(0).integers(0, 256, 300, np.uint8).tobytes()
    for length in range(300):
        assert crc32c(data[:length]) == crc32c_by_bits(data[:length]), length


def test_a_large_array_and_its_smallest_change() -> None:
    data = np.random.default_rng(1).integers(0, 256, 5_000_003, np.uint8)
    whole = crc32c(data)
    assert whole == crc32c(data.tobytes())
    data[4_999_999] ^= 1
    assert crc32c(data) != whole


def test_the_masked_form_can_be_undone() -> None:
    turned = (masked_crc32c(b"123456789") - 0xA282EAD8) & 0xFFFFFFFF
    assert (turned >> 17 | turned << 15) & 0xFFFFFFFF == 0xE3069283
