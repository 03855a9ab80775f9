"""The processes that share the work, on one machine or several, through MLX's distributed layer (`mlx.launch`)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

LAUNCHED = ("MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")  # what mlx.launch and MPI set


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """This process's rank (from 0) and the number of processes. group: MLX's own, None for a single process."""

    rank: int = 0
    size: int = 1
    group: Any = None

    def all_gather(self, data: bytes = b"") -> list[bytes]:
        """The data of every process, in order of rank. All of them wait here for each other."""
        if self.size == 1:
            return [data]
        import mlx.core as mx
        import numpy as np

        def gathered(array: Any) -> Any:
            return np.array(mx.distributed.all_gather(mx.array(array), group=self.group, stream=mx.cpu))

        lengths = gathered(np.array([len(data)], dtype=np.int32)).tolist()
        longest = max(max(lengths), 1)
        padded = np.frombuffer(data.ljust(longest, b"\0"), dtype=np.uint8)
        rows = gathered(padded).reshape(self.size, longest)
        return [row[:length].tobytes() for row, length in zip(rows, lengths, strict=True)]

    def barrier(self) -> None:
        """Wait until every process is here."""
        self.all_gather()


def join_group() -> ProcessGroup:
    """The group that this process was launched into, or a group of one."""
    if not any(name in os.environ for name in LAUNCHED):
        return ProcessGroup()
    import mlx.core as mx

    group = mx.distributed.init()
    return ProcessGroup(group.rank(), group.size(), group)
