"""Processes that were forked after MLX was used. MLX's threads do not exist there, so that it would wait forever."""

from __future__ import annotations

import os

from mlxgen.errors import MlxgenError

_user: int | None = None  # the process that used MLX first


def check_process() -> None:
    """Note that this process uses MLX. Raises MlxgenError if it was forked from one that did."""
    global _user
    if _user is None:
        _user = os.getpid()
    elif _user != os.getpid():
        raise MlxgenError(
            "this process was forked from one that has used MLX, and MLX does not work in it; start processes by"
            ' multiprocessing.get_context("spawn"), or load the model in the new process only'
        )
