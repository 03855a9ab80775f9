"""What other programs put around the names of GPT-2's tensors: the prefixes of wrappers, and further heads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from mlxgen.errors import ModelError, printable
from mlxgen.safetensors_header import TensorEntry

#: Modules that torch.compile, DistributedDataParallel, FSDP and checkpointing wrap around others, at any place.
WRAPPERS = re.compile(r"(?<![^.])(_orig_mod|module|_module|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
#: The first layer's norm, which every GPT-2 has: a block's in transformers and nanoGPT, or in minGPT's first version.
FIRST_NORM = re.compile(r"(|.*\.)(h\.0\.ln_1|blocks\.0\.ln1)\.weight")
FURTHER_HEAD = re.compile(r"((?!lm_head)\w+_heads?|score|classifier|qa_outputs)\..+")
CLASSIFIERS = ("score.", "classifier.", "qa_outputs.")


def names_without_prefixes(stored: Mapping[str, TensorEntry]) -> dict[str, str]:
    """Each tensor's name without the prefixes of wrappers and of the modules that a model was a part of.

    "transformer." and "model." stay where they mean a published layout. Raises ModelError for several models in one
    checkpoint.
    """
    plain = {name: WRAPPERS.sub("", name) for name in stored}
    outer = {found[1] for name in plain.values() if (found := FIRST_NORM.fullmatch(name))}
    if len(outer) > 1:
        prefixes = " and ".join(sorted(repr(printable(prefix)) for prefix in outer))
        raise ModelError(f"contains {len(outer)} models, whose tensors' names begin with {prefixes}; save one of them")
    whole = "".join(outer)
    foreign = whole.removesuffix("transformer.")
    if foreign == whole and _has_mlx_lm_layout(stored, plain):
        foreign = re.sub(r"(?<![^.])model\.$", "", whole)  # the layout of mlx-lm
    return {name: text.removeprefix(foreign) for name, text in plain.items()}


def _has_mlx_lm_layout(stored: Mapping[str, TensorEntry], plain: Mapping[str, str]) -> bool:
    """Whether the layers' weights are [out, in], as in mlx-lm's layout; packed ones always are."""
    shapes = (stored[name].shape for name, text in plain.items() if text.endswith("h.0.attn.c_attn.weight"))
    return all(len(shape) == 2 and shape[0] > shape[1] for shape in shapes)


def further_heads(names: Iterable[str], has_language_head: bool) -> list[str]:
    """The tensors of heads that a language model does not have. Raises ModelError for those of a classifier."""
    heads = [name for name in names if FURTHER_HEAD.fullmatch(name)]
    classifier = next((name for name in heads if name.startswith(CLASSIFIERS)), None)
    if classifier is not None and not has_language_head:
        found = f"it has {printable(classifier)} and no lm_head.weight"
        raise ModelError(f"the weights are those of a classifier, not of a language model ({found})")
    return heads


def shared_prefix(names: Iterable[str]) -> str:
    """The modules that all names begin with, such as "encoder.layers."; an empty text if there are none."""
    parts = [name.split(".")[:-1] for name in names]
    shared = []
    for column in zip(*parts, strict=False):
        if len(set(column)) > 1:
            break
        shared.append(column[0])
    return ".".join(shared) + "." if shared else ""
