"""The published layouts of a GPT-2 checkpoint, and how each maps onto the decoder's parameters.

    h.0.attn.c_attn.weight [in, out]               OpenAI's own, converted; mask buffers beside the weights
    transformer.h.0.attn.c_attn.weight [in, out]   what transformers saves, with or without lm_head.weight
    model.h.0.attn.c_attn.weight [out, in]         what mlx-lm's convert writes; packed layers have .scales

The first two keep the four products of a block as GPT-2's "Conv1D", [in, out]; the decoder has nn.Linear,
[out, in].
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mlxgen.errors import ModelError
from mlxgen.network.config import GPT2Config, Quantization
from mlxgen.weights.files.headers import StoredTensor, shown

Shape = tuple[int, ...]

HEAD, EMBEDDING = "lm_head.weight", "model.wte.weight"
PRODUCTS = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
MASKS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # the causal mask, once stored as if it were a weight
FLOATS = ("F32", "F16", "BF16")
SHOWN = 30  # names of each kind that an error lists


@dataclass(frozen=True, slots=True)
class Source:
    """Where one parameter of the decoder comes from."""

    name: str  # in the checkpoint
    tensor: StoredTensor
    transpose: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """A checkpoint matched to the decoder: a source for each parameter, and the layers that are packed.

    With a tied head there may be a source for lm_head.weight all the same; whoever reads the weights compares
    the two (transformers ties them only where they are equal).
    """

    sources: Mapping[str, Source]
    packed: Mapping[str, Quantization]


def decoder_shapes(config: GPT2Config) -> dict[str, Shape]:
    """The decoder's parameters and their shapes, weights as [out, in]."""
    width, inner = config.n_embd, config.n_inner
    shapes: dict[str, Shape] = {
        EMBEDDING: (config.vocab_size, width),
        "model.wpe.weight": (config.n_positions, width),
    }
    block: dict[str, Shape] = {
        "ln_1.weight": (width,),
        "ln_1.bias": (width,),
        "attn.c_attn.weight": (3 * width, width),
        "attn.c_attn.bias": (3 * width,),
        "attn.c_proj.weight": (width, width),
        "attn.c_proj.bias": (width,),
        "ln_2.weight": (width,),
        "ln_2.bias": (width,),
        "mlp.c_fc.weight": (inner, width),
        "mlp.c_fc.bias": (inner,),
        "mlp.c_proj.weight": (width, inner),
        "mlp.c_proj.bias": (width,),
    }
    for layer in range(config.n_layer):
        shapes |= {f"model.h.{layer}.{name}": shape for name, shape in block.items()}
    shapes |= {"model.ln_f.weight": (width,), "model.ln_f.bias": (width,)}
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, width)
    return shapes


def match(stored: Mapping[str, StoredTensor], config: GPT2Config) -> Layout:
    """Find each parameter of the decoder among the tensors of a checkpoint.

    Raises ModelError naming the tensors that are missing, unexpected, or not of the config's shape.
    """
    prefix = next((p for p in ("transformer.", "model.") if any(name.startswith(p) for name in stored)), "")
    conv1d = prefix != "model."
    sources: dict[str, Source] = {}
    unexpected: list[str] = []
    expected = decoder_shapes(config)
    for name, tensor in stored.items():
        rest = name.removeprefix(prefix)
        if MASKS.fullmatch(rest):
            continue
        if name.startswith("lm_head."):
            target = name
        elif name.startswith(prefix):
            target = f"model.{rest}"
        else:
            unexpected.append(name)
            continue
        sources[target] = Source(name, tensor, conv1d and rest.endswith(PRODUCTS))
    if config.tie_word_embeddings and HEAD in sources:
        if EMBEDDING in sources:
            expected[HEAD] = expected[EMBEDDING]
        else:  # tied the other way round: one tensor serves both
            sources[EMBEDDING] = sources.pop(HEAD)
    packed = {} if conv1d else _packed(sources, config, expected)
    unexpected += [source.name for target, source in sources.items() if target not in expected]
    missing = [_published(target, prefix) for target in expected if target not in sources]
    wrong = [
        problem
        for target, shape in expected.items()
        if target in sources and (problem := _problem(sources[target], shape, target, packed))
    ]
    if missing or unexpected or wrong:
        parts = [("missing ", missing), ("unexpected ", unexpected), ("", wrong)]
        told = "; ".join(kind + _some(names) for kind, names in parts if names)
        raise ModelError(f"the weights are not those of the GPT-2 in config.json: {told}")
    return Layout(sources, packed)


def _packed(sources: Mapping[str, Source], config: GPT2Config, expected: dict[str, Shape]) -> dict[str, Quantization]:
    """The layers that have scales. ``expected`` is changed to say the shapes of their packed parts."""
    packed: dict[str, Quantization] = {}
    for target in sources:
        path = target.removesuffix(".scales")
        if path == target or len(expected.get(f"{path}.weight", ())) != 2:
            continue
        if config.quantization is None:
            raise ModelError(f"the weights are packed ({target}), but config.json has no quantization entry")
        entry = config.quantization.for_layer(path)
        if entry is None:
            continue  # the config says it is not packed: its scales are unexpected
        rows, columns = expected[f"{path}.weight"]
        if columns % entry.group_size:
            raise ModelError(f"{path} has rows of {columns}, which groups of {entry.group_size} do not divide")
        expected[f"{path}.weight"] = (rows, columns * entry.bits // 32)
        expected[f"{path}.scales"] = (rows, columns // entry.group_size)
        if entry.mode == "affine":
            expected[f"{path}.biases"] = (rows, columns // entry.group_size)
        packed[path] = entry
    return packed


def _problem(source: Source, shape: Shape, target: str, packed: Mapping[str, Quantization]) -> str | None:
    """What is wrong with one tensor, or None."""
    path, _, kind = target.rpartition(".")
    types: tuple[str, ...] = FLOATS
    if path in packed and kind == "weight":
        types = ("U32",)
    elif path in packed and kind == "scales" and packed[path].mode != "affine":
        types = ("U8",)
    wanted = shape[::-1] if source.transpose else shape
    if source.tensor.shape != wanted:
        return f"{shown(source.name)} is {list(source.tensor.shape)} where config.json says {list(wanted)}"
    if source.tensor.dtype not in types:
        return f"{shown(source.name)} is of type {source.tensor.dtype}, not {' or '.join(types)}"
    return None


def _published(target: str, prefix: str) -> str:
    """The name that a missing parameter would have in a checkpoint of this layout."""
    return target if target == HEAD else prefix + target.removeprefix("model.")


def _some(names: Iterable[str]) -> str:
    names = [shown(name, 200) for name in names]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
