"""What a conversion did: the record that `convert` returns."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlxgen.network.config import Quantization
from mlxgen.weights.conversion.verification import Verification


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: bytes of its weights, their main type, and what `Conversion` says of the rest."""

    n_bytes: int
    dtype: str
    quantization: Quantization | None
    chat_template: bool
    verification: Verification | None


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was converted, and the result. Sizes are bytes of the weights alone."""

    source: str
    kind: str  # of checkpoint, in words
    to: str  # "mlx", "hf" or "gguf"
    folder: Path  # a file, if it is GGUF
    name: str  # by which mlxgen opens it; GGUF has to be converted first
    chat_template: bool  # whether it has one, which mlx_lm.chat needs
    n_parameters: int
    bytes_before: int
    bytes_after: int
    dtype: str
    quantization: Quantization | None
    cache_bytes_per_token: int
    tokenizer: str  # where it is from
    adapter: str | None  # that was merged into the weights
    assumed_activation: str | None  # of a state dict, which does not record it
    warnings: tuple[str, ...]
    verification: Verification | None

    def as_json(self) -> dict[str, Any]:
        """The record as `mlxgen convert --json` prints it."""
        q = self.quantization
        v = self.verification
        return {
            "source": self.source,
            "kind": self.kind,
            "n_parameters": self.n_parameters,
            "bytes_before": self.bytes_before,
            "to": self.to,
            "folder": str(self.folder),
            "name": self.name,
            "chat_template": self.chat_template,
            "bytes_after": self.bytes_after,
            "dtype": self.dtype,
            "quantization": {"bits": q.bits, "group_size": q.group_size} if q else None,
            "cache_bytes_per_token": self.cache_bytes_per_token,
            "tokenizer": self.tokenizer,
            "adapter": self.adapter,
            "warnings": list(self.warnings),
            "verification": asdict(v) if v else None,
        }
