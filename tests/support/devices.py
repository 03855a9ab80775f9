"""Which tests run on which device and system. Every other test holds on all of them."""

from __future__ import annotations

import sys

import pytest

from mlxgen import device


def cpu_only(why: str) -> pytest.MarkDecorator:
    """A test of what MLX's CPU backend alone does."""
    return pytest.mark.skipif(not device.on_cpu(), reason=f"for the CPU device: {why}")


def linux_only(why: str) -> pytest.MarkDecorator:
    """A test of what there is on Linux alone."""
    return pytest.mark.skipif(sys.platform != "linux", reason=f"for Linux: {why}")
