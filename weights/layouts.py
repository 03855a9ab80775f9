"""The published layouts of a GPT-2 checkpoint, and how each maps onto the decoder's parameters.

    h.0.attn.c_attn.weight [in, out]               OpenAI's own, converted; mask buffers beside the weights
    transformer.h.0.attn.c_attn.weight [in, out]   what transformers saves, with or without lm_head.weight
    model.h.0.attn.c_attn.weight [out, in]         what mlx-lm's convert writes; packed layers have .scales

The first two store the four linear layers of a block as GPT-2's "Conv1D", [in, out]. The decoder has nn.Linear,
[out, in].
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mlxgen.dtypes import WEIGHT_TYPES, DType
from mlxgen.errors import ModelError, printable
from mlxgen.network.config import GPT2Config, Quantization
from mlxgen.weights.files.headers import StoredTensor, main_dtype, read_headers
from mlxgen.weights.files.model_folder import weight_files
from mlxgen.weights.tensor_names import further_heads, names_without_prefixes, shared_prefix

Shape = tuple[int, ...]

HEAD, EMBEDDING = "lm_head.weight", "model.wte.weight"
PRODUCTS = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
MASKS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # the causal mask, once stored as if it were a weight
FLOATS = tuple(dtype.tag for dtype in WEIGHT_TYPES)
MOST_NAMES = 8  # of each kind that an error lists
MOST_SHAPES = 3  # a wrong config makes all of them wrong


@dataclass(frozen=True, slots=True)
class ParameterSource:
    """Where one parameter of the decoder comes from."""

    name: str  # in the checkpoint
    tensor: StoredTensor
    transpose: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """A checkpoint matched to the decoder: a source for each parameter, and the layers that are packed.

    A checkpoint may have a head although the config ties it to the embedding: see `decoder_weights`.
    """

    sources: Mapping[str, ParameterSource]
    packed: Mapping[str, Quantization]
    left_out: tuple[str, ...] = ()  # tensors of heads that a language model does not have

    @property
    def nbytes(self) -> int:
        """Bytes of the weights in their files."""
        return sum(source.tensor.nbytes for source in self.sources.values())

    @property
    def notes(self) -> list[str]:
        """What is not as it is stored, in sentences."""
        notes = []
        if self.left_out:
            notes.append(f"{listed(self.left_out, 3)}: left out, because it is not part of a language model")
        if any(source.tensor.narrowed for source in self.sources.values()):
            notes.append("the weights are stored in float64 and were converted to float32")
        return notes

    @property
    def dtype(self) -> DType:
        """The floating-point type that most of the weights are stored in."""
        return main_dtype(source.tensor for source in self.sources.values())


def read_layout(folder: Path, config: GPT2Config) -> Layout:
    """Match the weights in ``folder`` to the decoder by their files' headers. Raises ModelError."""
    stored = read_headers(weight_files(folder))
    try:
        return match(stored, config)
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from None


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


def match(stored: Mapping[str, StoredTensor], config: GPT2Config, settings: str | None = "config.json") -> Layout:
    """Find each parameter of the decoder among the tensors of a checkpoint.

    settings: where the config is from, for errors; None if it follows from the tensors. Raises ModelError that names
    the tensors which are missing, unexpected, or of another shape than the config's.
    """
    names = names_without_prefixes(stored)
    further = further_heads(names.values(), HEAD in names.values())
    prefix = next((p for p in ("transformer.", "model.") if any(name.startswith(p) for name in names.values())), "")
    conv1d = prefix != "model."
    sources: dict[str, ParameterSource] = {}
    unexpected: list[str] = []
    expected = decoder_shapes(config)
    for stored_name, tensor in stored.items():
        name = names[stored_name]
        rest = name.removeprefix(prefix)
        if MASKS.fullmatch(rest) or name in further:
            continue
        if name.startswith("lm_head."):
            target = name
        elif name.startswith(prefix):
            target = f"model.{rest}"
        else:
            unexpected.append(stored_name)
            continue
        sources[target] = ParameterSource(stored_name, tensor, conv1d and rest.endswith(PRODUCTS))
    if config.tie_word_embeddings and HEAD in sources:
        if EMBEDDING in sources:
            expected[HEAD] = expected[EMBEDDING]
        else:  # the head is stored in place of the embedding
            sources[EMBEDDING] = sources.pop(HEAD)
    packed = {} if conv1d else _packed(sources, config, expected)
    unexpected += [source.name for target, source in sources.items() if target not in expected]
    missing = [_published(target, prefix) for target in expected if target not in sources]
    if len(missing) == len(expected):
        common = shared_prefix(stored)
        shown = f"begin with {printable(common)!r}" if common else f"are {listed(stored, 3)}"
        raise ModelError(f"the weights are not those of a GPT-2: none of its tensors is there, and their names {shown}")
    wrong = [
        problem
        for target, shape in expected.items()
        if target in sources and (problem := _problem(sources[target], shape, target, packed))
    ]
    if missing or unexpected or wrong:
        kinds = [("missing ", missing, MOST_NAMES), ("unexpected ", unexpected, MOST_NAMES), ("", wrong, MOST_SHAPES)]
        problems = "; ".join(kind + listed(names, most) for kind, names, most in kinds if names)
        wrong_for = f"do not match {settings}" if settings else "do not fit together"
        raise ModelError(f"the weights {wrong_for}: {problems}")
    return Layout(sources, packed, tuple(further))


def _packed(
    sources: Mapping[str, ParameterSource], config: GPT2Config, expected: dict[str, Shape]
) -> dict[str, Quantization]:
    """The layers that have scales. ``expected`` is changed to the shapes of their packed weights, scales and biases."""
    packed: dict[str, Quantization] = {}
    for target in sources:
        path = target.removesuffix(".scales")
        if path == target or len(expected.get(f"{path}.weight", ())) != 2:
            continue
        if config.quantization is None:
            raise ModelError(f"the weights are quantized ({target}), but config.json has no quantization entry")
        entry = config.quantization.for_layer(path)
        if entry is None:
            continue  # not packed according to the config, so its scales are unexpected
        rows, columns = expected[f"{path}.weight"]
        if columns % entry.group_size:
            raise ModelError(f"{path}: rows of {columns} weights cannot be split into groups of {entry.group_size}")
        expected[f"{path}.weight"] = (rows, columns * entry.bits // 32)
        expected[f"{path}.scales"] = (rows, columns // entry.group_size)
        if entry.mode == "affine":
            expected[f"{path}.biases"] = (rows, columns // entry.group_size)
        packed[path] = entry
    return packed


def _problem(source: ParameterSource, shape: Shape, target: str, packed: Mapping[str, Quantization]) -> str | None:
    """What is wrong with one tensor, or None."""
    path, _, kind = target.rpartition(".")
    types: tuple[str, ...] = FLOATS
    if path in packed and kind == "weight":
        types = ("U32",)
    elif path in packed and kind == "scales" and packed[path].mode != "affine":
        types = ("U8",)
    expected = shape[::-1] if source.transpose else shape
    if source.tensor.shape != expected:
        return f"{printable(source.name)} has shape {list(source.tensor.shape)}, not {list(expected)}"
    if source.tensor.dtype not in types:
        return f"{printable(source.name)} has type {source.tensor.dtype}, not {' or '.join(types)}"
    return None


def _published(target: str, prefix: str) -> str:
    """The name that a missing parameter would have in a checkpoint of this layout."""
    return target if target == HEAD else prefix + target.removeprefix("model.")


def listed(names: Iterable[str], most: int) -> str:
    """Tensor names from an untrusted file, for a message: at most ``most`` of them."""
    names = [printable(name, 200) for name in names]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
