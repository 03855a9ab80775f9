"""The KV cache of a beam search: one row, in which the positions of all beams stand side by side.

The prompt's keys and values are there once. Each step adds one entry per beam, and a mask says which entries a beam
reads: those of the prompt and of its own text (as in tree attention: Miao et al., 2023, SpecInfer). When beams part or
end, only rows of the mask are reordered; keys and values never move. So all beams together read the prompt once a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from mlxgen.network.cache import KVCache


class BeamCache:
    """The caches of all layers, which hold a prompt, for `beams` texts that continue it.

    Call `begin_step` before each step, and pass `layers` to the decoder as its cache, with ids [1, beams].
    """

    def __init__(self, prompt: Sequence[KVCache], beams: int) -> None:
        self._beams, self._position = beams, prompt[0].offset
        self._step = BeamStep(mx.ones((beams, self._position), mx.bool_), mx.full((1, beams), self._position))
        self.layers = [BeamCacheLayer(self._step, layer) for layer in prompt]

    def begin_step(self, parents: mx.array) -> None:
        """Let each beam go on from the text of another: parents int [beams], any of them several times or never."""
        own, step = mx.arange(self._beams), self._step
        step.mask = mx.concatenate([step.mask[parents], own[:, None] == own], axis=1)
        step.positions = mx.full((1, self._beams), self._position)
        self._position += 1


@dataclass(slots=True)
class BeamStep:
    """What all layers need in a step.

    mask: which entries each beam reads, bool [beams, entries]. positions: of the beams' newest tokens, int [1, beams].
    """

    mask: mx.array
    positions: mx.array


class BeamCacheLayer:
    """One layer's keys and values: those of the prompt, then one entry per beam and step."""

    def __init__(self, step: BeamStep, entries: KVCache) -> None:
        self._step, self.entries = step, entries

    @property
    def offset(self) -> mx.array:
        """The position of each beam's newest token: int [1, beams], the same for all."""
        return self._step.positions

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        return self._step.mask

    def update_pair(self, pair: mx.array) -> mx.array:
        """Add an entry per beam, keys and values [1, 2 H, beams, D/H]; returns those of all entries."""
        return self.entries.update_pair(pair)
