"""Merging an adapter into a model's weights: the weights stay lazy, and each parameter is changed when it is read.

A tied head is the embedding. What an adapter adds to either of them changes both, as in PEFT's merge_and_unload. Where
one of them was copied and trained as a whole (modules_to_save), the two are no longer the same, and the head becomes a
parameter of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import mlx.core as mx

from mlxgen.errors import ModelError
from mlxgen.network.config import LIMITS, GPT2Config
from mlxgen.weights.adapters import mlx_lm, peft
from mlxgen.weights.adapters.adapter import Adapter
from mlxgen.weights.adapters.fit import Fit
from mlxgen.weights.adapters.steps import LowRank, Replacement, Step
from mlxgen.weights.layouts import EMBEDDING, HEAD, listed
from mlxgen.weights.parameters import Change, DecoderWeights
from mlxgen.weights.sources.checkpoint import LazyTensor

BOTH_SIDES = (
    "the adapter changes the embedding, which is also the model's head; merged, it changes both, as in PEFT's"
    " merge_and_unload"
)


def merge(weights: DecoderWeights, adapter: Adapter, warn: Callable[[str], None]) -> DecoderWeights:
    """The weights with the adapter, which is checked against the model before any tensor is read.

    warn is called with each note. Raises ModelError where the adapter does not fit.
    """
    try:
        return _merge(weights, adapter, warn)
    except ModelError as error:
        raise ModelError(f"{adapter.folder}: {error}") from None


def _merge(weights: DecoderWeights, adapter: Adapter, warn: Callable[[str], None]) -> DecoderWeights:
    settings, before = adapter.settings, weights.config
    if isinstance(settings, mlx_lm.Settings):
        fit = Fit(before, adapter.tensors)
        mlx_lm.collect(fit, settings, adapter.tensors)
        fit.check(adapter.base)
        steps = _on_embedding(fit.steps) if before.tie_word_embeddings else fit.steps
        return replace(weights, changes={target: _change(target, own) for target, own in steps.items()})
    plain = peft.plain_names(adapter.tensors)
    config = _with_vocabulary(before, plain)
    fit = Fit(config, adapter.tensors)
    further = peft.collect(fit, settings, plain)
    fit.check(adapter.base)
    if further:
        warn(f"{listed(further, 3)}: left out, because it is not part of a language model")
    tied, steps = _with_head(config, settings, fit.steps, warn)
    sides = (EMBEDDING,) if tied else (EMBEDDING, HEAD)
    if config.vocab_size != before.vocab_size and not all(_is_replaced(steps.get(side, [])) for side in sides):
        raise ModelError("has an embedding or a head for another vocabulary, but not both")
    bases = {HEAD: EMBEDDING} if before.tie_word_embeddings else {}
    changes = {target: _change(bases.get(target, target), own) for target, own in steps.items()}
    return replace(weights, config=replace(config, tie_word_embeddings=tied), changes=changes)


def _with_vocabulary(config: GPT2Config, plain: Mapping[str, LazyTensor]) -> GPT2Config:
    """The config for the vocabulary of an embedding or head that the adapter replaces, which may have other tokens."""
    for name in ("transformer.wte.weight", "wte.weight", "lm_head.weight"):
        if name in plain:
            shape = plain[name].stored.shape
            if len(shape) == 2 and shape[1] == config.n_embd and 0 < shape[0] <= LIMITS["vocab_size"]:
                return replace(config, vocab_size=shape[0])
    return config


def _with_head(
    config: GPT2Config, settings: peft.Settings, steps: Mapping[str, list[Step]], warn: Callable[[str], None]
) -> tuple[bool, dict[str, list[Step]]]:
    """Whether the head is tied to the embedding in the end, and the steps by the parameters that then are there."""
    if not config.tie_word_embeddings:
        return False, dict(steps)
    if settings.tied and EMBEDDING in steps and HEAD in steps:  # the same numbers, trained for both sides
        return True, {target: own for target, own in steps.items() if target != HEAD}
    sides = ((EMBEDDING, "transformer.wte"), (HEAD, "lm_head"))
    if any(settings.is_whole(module) and _is_replaced(steps.get(target, [])) for target, module in sides):
        return False, {**steps, HEAD: steps.get(HEAD, [])}
    if any(isinstance(step, LowRank) for target, _ in sides for step in steps.get(target, [])):
        warn(BOTH_SIDES)
    return True, _on_embedding(steps)


def _on_embedding(steps: Mapping[str, list[Step]]) -> dict[str, list[Step]]:
    """The steps of a tied head on the embedding, which it is."""
    both = [*steps.get(EMBEDDING, []), *steps.get(HEAD, [])]
    others = {target: own for target, own in steps.items() if target not in (EMBEDDING, HEAD)}
    return {**others, EMBEDDING: sorted(both, key=lambda step: step.order)} if both else others


def _is_replaced(steps: Sequence[Step]) -> bool:
    return any(isinstance(step, Replacement) for step in steps)


def _change(base: str, steps: Sequence[Step]) -> Change:
    return Change(base, partial(_apply, tuple(steps)))


def _apply(steps: Sequence[Step], weight: mx.array) -> mx.array:
    for step in steps:
        weight = step.apply(weight)
    return weight
