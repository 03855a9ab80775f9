"""The number types of GGUF files, and how their blocks are unpacked.

A quantized row is a sequence of blocks of 32 numbers (256 for the K types) with a scale of its own, a float16. Q8_0,
Q4_0 and Q4_1 hold exactly what MLX's quantized layers with groups of 32 do, so they stay packed:

    Q8_0    d, 32 bytes q            d q           = d (q + 128) - 128 d
    Q4_0    d, 16 bytes of 2 x 4     d (q - 8)     = d q - 8 d
    Q4_1    d, m, 16 bytes of 2 x 4  d q + m

The layouts are those of ggml-quants.c in llama.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

GROUP = 32  # numbers that share a scale

#: Every type of ggml.h that a file may name -> its name.
NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class BlockType:
    """A type that is read. bits: of a quantized layer in MLX; None for numbers that are not packed there."""

    name: str
    n_numbers: int  # in a block
    n_bytes: int
    bits: int | None = None


#: The types that are read. llama-quantize gives the embeddings Q6_K in files of four bits.
TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    30: BlockType("BF16", 1, 2),
    8: BlockType("Q8_0", GROUP, 34, bits=8),
    2: BlockType("Q4_0", GROUP, 18, bits=4),
    3: BlockType("Q4_1", GROUP, 20, bits=4),
    14: BlockType("Q6_K", 256, 210),
}


def packed_weight(blocks: Array, name: str) -> Array:
    """The integers of quantized blocks as MLX packs them. blocks: uint8 [rows, n, bytes]. Returns uint32 [rows, …]."""
    rows = blocks.shape[0]
    if name == "Q8_0":
        unsigned = blocks[..., 2:] ^ np.uint8(128)  # q + 128
        return np.ascontiguousarray(unsigned).reshape(rows, -1).view("<u4")
    nibbles = blocks[..., 2 if name == "Q4_0" else 4 :]  # byte j has number j below and number j + 16 above
    numbers = np.concatenate([nibbles & np.uint8(15), nibbles >> np.uint8(4)], axis=-1)
    joined = numbers[..., 0::2] | (numbers[..., 1::2] << np.uint8(4))  # MLX's byte j has 2 j below and 2 j + 1 above
    return np.ascontiguousarray(joined).reshape(rows, -1).view("<u4")


def scales(blocks: Array) -> Array:
    """float16 [rows, n]."""
    return _float16(blocks[..., :2])


def biases(blocks: Array, name: str) -> Array:
    """What MLX adds to the product of scale and integer. float16 [rows, n]."""
    if name == "Q4_1":
        return _float16(blocks[..., 2:4])
    with np.errstate(over="ignore", invalid="ignore"):  # a damaged scale
        return scales(blocks) * np.float16(-128 if name == "Q8_0" else -8)


def unpacked_q6_k(blocks: Array) -> Array:
    """The numbers of Q6_K blocks. blocks: uint8 [rows, n, 210]. Returns float32 [rows, 256 n].

    A block has the lower 4 bits of its 256 numbers, the upper 2, a scale of 8 bits for each 16, and one for them all.
    """
    rows, n = blocks.shape[:2]
    low = blocks[..., :128].reshape(rows, n, 2, 64)
    low = np.concatenate([low & np.uint8(15), low >> np.uint8(4)], axis=-1)  # [rows, n, 2, 128]
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = (blocks[..., 128:192].reshape(rows, n, 2, 1, 32) >> shifts) & np.uint8(3)  # [rows, n, 2, 4, 32]
    numbers = (low | (high.reshape(low.shape) << np.uint8(4))).view(np.int8) - np.int8(32)
    inner = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).astype(np.float32)  # [rows, n, 16]
    with np.errstate(over="ignore", invalid="ignore"):
        scale = _float16(blocks[..., 208:210]).astype(np.float32)[..., None] * inner
        return (scale[..., None] * numbers.reshape(rows, n, 16, 16)).reshape(rows, -1)


def _float16(pairs: Array) -> Array:
    return np.ascontiguousarray(pairs).view("<f2")[..., 0]
