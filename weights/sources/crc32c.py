"""CRC-32C (Castagnoli), the checksum in TensorFlow's and LevelDB's files, over whole arrays at a time.

A CRC is the remainder of a polynomial over two elements. Multiplied by the power of x for its distance, the first half
of a block can be added to the second half without changing the remainder. So a block of 2^k words becomes one word in k
steps. In a word, the lowest bit is the highest power of x.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

Array = Any  # a NumPy array

POLYNOMIAL = 0x82F63B78  # which is also x^32
BLOCK_WORDS = 1 << 20
ALL_ONES = 0xFFFFFFFF


def crc32c(data: bytes | Array) -> int:
    """The CRC-32C of some bytes."""
    state = ALL_ONES
    n_words = len(data) // 4
    words = np.frombuffer(data, "<u4", n_words)
    for begin in range(0, n_words, BLOCK_WORDS):
        state = _after_block(state, words[begin : begin + BLOCK_WORDS])
    for byte in bytes(data[4 * n_words :]):
        state ^= byte
        for _ in range(8):
            state = _times_x(state)
    return state ^ ALL_ONES


def masked_crc32c(data: bytes | Array) -> int:
    """The CRC-32C as LevelDB and TensorFlow store it: turned and shifted."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & ALL_ONES


def _after_block(state: int, words: Array) -> int:
    level = (len(words) - 1).bit_length()
    block = np.zeros(1 << level, np.uint32)  # zeros before the first word add nothing
    block[-len(words) :] = words
    block[-len(words)] ^= np.uint32(state)
    while level:
        level -= 1
        first, second = block[: 1 << level], block[1 << level :]
        block = _times_power(first, level) ^ second
    return int(_times_power(block, 0)[0])


def _times_power(words: Array, level: int) -> Array:
    """The words times x^(32 * 2^level)."""
    low, high = _tables(level)
    halves = words.view("<u2").reshape(-1, 2)
    return low[halves[:, 0]] ^ high[halves[:, 1]]


@cache
def _tables(level: int) -> tuple[Array, Array]:
    """The products of every half word with x^(32 * 2^level): of the low halves, and of the high ones."""
    bits = _bit_products(_power(level))
    return _sums(bits[:16]), _sums(bits[16:])


def _sums(bits: list[int]) -> Array:
    table = np.zeros(1, np.uint32)
    for bit in bits:
        table = np.concatenate([table, table ^ np.uint32(bit)])
    return table


@cache
def _power(level: int) -> int:
    """x^(32 * 2^level)."""
    if level == 0:
        return POLYNOMIAL
    root = _power(level - 1)
    square = 0
    for at, bit in enumerate(_bit_products(root)):
        square ^= bit if root >> at & 1 else 0
    return square


def _bit_products(factor: int) -> list[int]:
    """The products of each single bit with a factor, that of the lowest bit first."""
    products = [factor]
    while len(products) < 32:
        products.append(_times_x(products[-1]))
    return products[::-1]


def _times_x(word: int) -> int:
    return word >> 1 ^ (POLYNOMIAL if word & 1 else 0)
