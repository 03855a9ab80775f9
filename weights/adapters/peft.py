"""PEFT's adapters: LoRA, rank-stabilised or not, and DoRA, with the parameters that were trained beside it.

    base_model.model.transformer.h.0.attn.c_attn.lora_A.weight [r, in], .lora_B.weight [out, r]
    base_model.model.transformer.wte.lora_embedding_A [r, V], .lora_embedding_B [D, r]
    ….lora_magnitude_vector [out]; of an embedding, [D]
    ….lora_B.bias, ….bias                              bias: "all" or "lora_only", and lora_bias
    base_model.model.transformer.ln_f.weight           modules_to_save; Conv1D's weights are [in, out]
    ….wte.token_adapter.trainable_tokens_delta [n, D]  trainable_token_indices: the new rows, not differences

A and B are those of a linear layer whether the weight is GPT-2's Conv1D or not, so fan_in_fan_out changes nothing here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from mlxgen.errors import ModelError, printable
from mlxgen.json_file import describe
from mlxgen.weights.adapters import entries as read
from mlxgen.weights.adapters.fit import Fit
from mlxgen.weights.adapters.module_patterns import ModulePatterns
from mlxgen.weights.layouts import MASKS, PRODUCTS
from mlxgen.weights.sources.checkpoint import LazyTensor
from mlxgen.weights.tensor_names import WRAPPERS, further_heads

PREFIX = re.compile(r"(.*\.)?base_model\.model\.")
LORA = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_(A|B|embedding_A|embedding_B|magnitude_vector))(\.default)?"
    r"(\.(?P<leaf>weight|bias))?"
)
TOKENS = ".token_adapter.trainable_tokens_delta"
EMBEDDINGS = ("wte", "wpe")

MERGE = "merge it with PEFT (merge_and_unload), save the result with save_pretrained, and open that"
VIRTUAL = ("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "CPT", "CARTRIDGE")
UNMERGEABLE = (*VIRTUAL, "ADAPTION_PROMPT", "XLORA", "POLY")
#: Ways to begin that also change the weights of the base model.
OTHER_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
#: Entries that make LoRA compute something else.
VARIANTS = (
    "alora_invocation_tokens",
    "use_qalora",
    "use_bdlora",
    "arrow_config",
    "monteclora_config",
    "kasa_config",
    "layer_replication",
    "target_parameters",
)


class Settings(NamedTuple):
    """The entries of adapter_config.json that the numbers depend on."""

    ranks: ModulePatterns[int]
    alphas: ModulePatterns[float]
    r: int
    alpha: float
    rank_stabilised: bool
    dora: bool
    whole: tuple[str, ...]  # modules_to_save
    tokens: Any  # trainable_token_indices
    tied: bool  # where both the embedding and the head are there, they are one (ensure_weight_tying)

    def rank(self, module: str) -> int:
        return self.ranks.get(module, self.r)

    def scale(self, module: str) -> float:
        rank = self.rank(module)
        return self.alphas.get(module, self.alpha) / (math.sqrt(rank) if self.rank_stabilised else rank)

    def is_whole(self, module: str) -> bool:
        """Whether the module was copied and trained as a whole."""
        return any(f".{name}." in f".{module}." for name in self.whole)


def read_settings(entries: Mapping[str, Any]) -> Settings:
    """Check the entries of adapter_config.json. Raises ModelError for a kind of adapter that is not supported."""
    kind = entries.get("peft_type")
    if kind != "LORA":
        _refuse(kind)
    for name in VARIANTS:
        if entries.get(name):
            raise ModelError(f"{name} is set, and mlxgen reads plain LoRA and DoRA only; {MERGE}")
    init = entries.get("init_lora_weights")
    if isinstance(init, str) and init.lower().startswith(OTHER_BASE):
        raise ModelError(
            f"init_lora_weights is {describe(init)}, which also changed the base model's weights; save it again"
            " with PEFT's save_pretrained(…, path_initial_model_for_weight_conversion=…), which makes it plain"
        )
    ranks = {name: read.rank("rank_pattern", value) for name, value in read.mapping(entries, "rank_pattern").items()}
    alphas = {name: read.number("alpha_pattern", v) for name, v in read.mapping(entries, "alpha_pattern").items()}
    return Settings(
        ModulePatterns("rank_pattern", ranks),
        ModulePatterns("alpha_pattern", alphas),
        r=read.rank("r", entries.get("r", 8)),
        alpha=read.number("lora_alpha", entries.get("lora_alpha", 8)),
        rank_stabilised=read.flag(entries, "use_rslora"),
        dora=read.flag(entries, "use_dora"),
        whole=read.names(entries, "modules_to_save"),
        tokens=entries.get("trainable_token_indices"),
        tied=read.flag(entries, "ensure_weight_tying"),
    )


def _refuse(kind: object) -> None:
    what = f"its peft_type is {describe(kind)}"
    if kind in VIRTUAL:
        raise ModelError(f"{what}, which adds virtual tokens to the prompt; mlxgen reads LoRA and DoRA only")
    if kind in UNMERGEABLE:
        raise ModelError(f"{what}, which cannot be merged into the weights; mlxgen reads LoRA and DoRA only")
    raise ModelError(f"{what}, and mlxgen reads LoRA and DoRA only; {MERGE}")


def plain_names(tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """The tensors by the names of their modules in the model, such as "transformer.h.0.ln_1.bias".

    Where tokens were added, PEFT saves the embedding and the head as well. A module of modules_to_save is then there
    three times: by its own name, by that of its copy, which are the same, and as it was before the training.
    """
    plain: dict[str, LazyTensor] = {}
    copies: dict[str, LazyTensor] = {}
    for name, tensor in tensors.items():
        short = PREFIX.sub("", WRAPPERS.sub("", name)).replace(".token_adapter.base_layer.", ".")
        short = short.replace(".base_layer.", ".")
        if ".original_module." in short:
            continue
        place = copies if ".modules_to_save." in short else plain
        short = short.replace(".modules_to_save.", ".")
        if short in place:
            raise ModelError(f"has {printable(short, 200)} twice")
        place[short] = tensor
    return plain | copies


def collect(fit: Fit, settings: Settings, plain: Mapping[str, LazyTensor]) -> list[str]:
    """Give every tensor its place in the model. Returns the tensors of heads that a language model does not have.

    plain: see `plain_names`.
    """
    further = further_heads([name for name in plain if not LORA.fullmatch(name)], has_language_head=False)
    layers: dict[str, dict[str, LazyTensor]] = {}
    for name, tensor in plain.items():
        short = name.removeprefix("transformer.")
        if name in further or MASKS.fullmatch(short):
            continue
        if found := LORA.fullmatch(name):
            part = found["part"] + (".bias" if found["leaf"] == "bias" else "")
            parts = layers.setdefault(found["module"], {})
            if part in parts:
                raise ModelError(f"has {part} of {printable(found['module'], 200)} twice")
            parts[part] = tensor
        elif short.endswith(TOKENS):
            module = short.removesuffix(TOKENS)
            fit.replace_rows(parameter(f"{module}.weight"), tensor, _token_ids(settings.tokens, module))
        else:
            fit.replace(parameter(short), tensor, transpose=short.endswith(PRODUCTS))
    for module, parts in layers.items():
        _collect_layer(fit, settings, module, parts)
    return further


def _collect_layer(fit: Fit, settings: Settings, module: str, parts: dict[str, LazyTensor]) -> None:
    """The tensors of one LoRA layer."""
    short = module.removeprefix("transformer.")
    target = parameter(f"{short}.weight")
    if target not in fit.shapes:
        for tensor in parts.values():
            fit.unexpected(tensor)
        return
    rank, scale = settings.rank(module), settings.scale(module)
    if bias := parts.pop("lora_B.bias", None):
        fit.add(parameter(f"{short}.bias"), bias, scale)
    embedding = short in EMBEDDINGS
    a, b = ("lora_embedding_A", "lora_embedding_B") if embedding else ("lora_A", "lora_B")
    left, right, magnitude = parts.pop(b, None), parts.pop(a, None), parts.pop("lora_magnitude_vector", None)
    if settings.dora and magnitude is None and left is not None:
        raise ModelError(f"use_dora is true, but {printable(module)} has no lora_magnitude_vector")
    if not settings.dora and magnitude is not None:
        raise ModelError(f"{printable(module)} has a lora_magnitude_vector, but use_dora is not true")
    for tensor in parts.values():
        fit.unexpected(tensor)
    if left or right or magnitude:
        fit.add_product(target, left, right, magnitude, scale=scale, rank=rank, transpose=embedding, columns=embedding)


def parameter(name: str) -> str:
    """The decoder's name of a parameter."""
    return name if name.startswith("lm_head.") else f"model.{name}"


def _token_ids(tokens: Any, module: str) -> list[int]:
    """The ids whose rows were trained, in the order of the rows."""
    if isinstance(tokens, dict):
        of_module = (ids for name, ids in tokens.items() if f".transformer.{module}".endswith(f".{name}"))
        tokens = next(of_module, None) if module != "lm_head" else tokens.get(module, _token_ids(tokens, "wte"))
    return read.whole_numbers("trainable_token_indices", tokens)
