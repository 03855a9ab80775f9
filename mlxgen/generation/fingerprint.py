"""A model's fingerprint: a hash that tells whether saved results were computed with this model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict

import mlx.core as mx
import mlx.nn as nn

from mlxgen.model import Model

SAMPLES = 8  # hashed weights along each axis of a tensor, about
OTHER_FACTS = (
    "quantization",
    "bos_token_id",
    "eos_token_ids",
    "conversational",
)  # left out: hidden states do not depend on them


def fingerprint(model: Model) -> str:
    """Hash the config and a sample of every tensor into 32 hexadecimal digits, independent of the memory layout.

    Packed weights have the fingerprint that they have unpacked. An adapter counts itself: it may change few numbers.
    """
    facts = {name: value for name, value in asdict(model.config).items() if name not in OTHER_FACTS}
    if model.adapter_digest:
        facts["adapter"] = model.adapter_digest
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16)
    # Unpacking may round the last bit differently on another device.
    dtype = mx.bfloat16 if model.config.quantization else mx.float32
    for path, module in sorted(model.decoder.named_modules()):
        for name, value in sorted(module.items()):
            if isinstance(value, mx.array) and name not in ("scales", "biases"):
                sample = _unpacked_sample(module) if value.dtype == mx.uint32 else value[_spread(value.shape)]
                digest.update(f"{path}.{name}".encode() + array_bytes(sample.astype(dtype)))
    return digest.hexdigest()


def _unpacked_sample(module: nn.Module) -> mx.array:
    """The sample that the unpacked weight would give."""
    rows, _ = _spread(module.weight.shape)
    scales, biases = module.scales[rows], module.get("biases")
    if biases is not None:
        scales, biases = scales.astype(mx.float32), biases[rows].astype(mx.float32)
    weight = mx.dequantize(
        module.weight[rows], scales, biases, group_size=module.group_size, bits=module.bits, mode=module.mode
    )
    return weight[:, _spread(weight.shape)[1]]


def array_bytes(array: mx.array) -> memoryview:
    """The array's bytes, in row-major order."""
    if array.size == 0:
        return memoryview(b"")
    return memoryview(mx.contiguous(array.reshape(-1)).view(mx.uint8))  # type: ignore[arg-type]  # it has a buffer


def _spread(shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(None, None, max(1, size // SAMPLES)) for size in shape)
