"""A model's fingerprint: a hash that tells whether saved results were computed with this model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict

import mlx.core as mx

from mlxgen.model import Model

SAMPLES = 8  # hashed weights along each axis of a tensor, about
OTHER_FACTS = (
    "quantization",
    "bos_token_id",
    "eos_token_ids",
    "conversational",
)  # left out: hidden states do not depend on them


def fingerprint(model: Model) -> str:
    """Hash the config and a sample of every tensor into 32 hexadecimal digits, independent of the memory layout."""
    facts = {name: value for name, value in asdict(model.config).items() if name not in OTHER_FACTS}
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16)
    for path, module in sorted(model.decoder.named_modules()):
        for name, value in sorted(module.items()):
            if isinstance(value, mx.array):
                sample = value[_spread(value.shape)]
                digest.update(f"{path}.{name}".encode() + array_bytes(sample.astype(mx.float32)))
    return digest.hexdigest()


def array_bytes(array: mx.array) -> memoryview:
    """The array's bytes, in row-major order."""
    if array.size == 0:
        return memoryview(b"")
    return memoryview(mx.contiguous(array.reshape(-1)).view(mx.uint8))  # type: ignore[arg-type]  # it has a buffer


def _spread(shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(None, None, max(1, size // SAMPLES)) for size in shape)
