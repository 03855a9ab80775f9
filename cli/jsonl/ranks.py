"""Several machines, or several processes of one, through MLX's distributed layer (`mlx.launch`)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

LAUNCHED = ("MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")  # what mlx.launch and MPI set


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place among those that share the work."""

    rank: int = 0
    size: int = 1
    group: Any = None

    def gather(self, data: bytes = b"") -> list[bytes]:
        """Everybody's data, in order of rank. All ranks call it together, so it is a meeting point as well."""
        if self.size == 1:
            return [data]
        import mlx.core as mx
        import numpy as np

        def everybodys(array: Any) -> Any:
            return np.array(mx.distributed.all_gather(mx.array(array), group=self.group, stream=mx.cpu))

        lengths = everybodys(np.array([len(data)], dtype=np.int32)).tolist()
        longest = max(max(lengths), 1)
        padded = np.frombuffer(data.ljust(longest, b"\0"), dtype=np.uint8)
        every = everybodys(padded).reshape(self.size, longest)
        return [row[:length].tobytes() for row, length in zip(every, lengths, strict=True)]


def join_ranks() -> Ranks:
    """The group that this process was launched into; alone where it was not."""
    if not any(name in os.environ for name in LAUNCHED):
        return Ranks()
    import mlx.core as mx

    group = mx.distributed.init()
    return Ranks(group.rank(), group.size(), group)
