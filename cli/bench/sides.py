"""The sides of a measurement, mlxgen and its peers: how each opens a folder and decodes one text, and what it needs.

All choose greedily with no end token. Peers run as their users run them: mlx-lm without the BLAS that mlxgen loads,
transformers on torch, CTranslate2 on its own kernels.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from mlxgen.errors import OptionError

Runner = Callable[[list[int], int], Iterator[int]]  # (prompt, new tokens) -> the tokens, one by one


@dataclass(frozen=True, slots=True)
class Side:
    """open: a folder's runner; mlxgen's takes the type to compute in, too.

    needs: packages besides mlxgen's own. our_blas: whether it gets the BLAS of mlxgen.
    """

    open: Callable[..., Runner]
    needs: tuple[str, ...] = ()
    our_blas: bool = False

    @property
    def missing(self) -> list[str]:
        """The packages that it needs and that are not installed."""
        return [name for name in self.needs if find_spec(name) is None]


def open_mlxgen(folder: Path, dtype: str | None = None) -> Runner:
    """What mlxgen.generate does, without text: prefill in chunks, then steps that are sent ahead of being read."""
    import mlx.core as mx

    from mlxgen.device import lay_out_weights
    from mlxgen.generation.session import Session
    from mlxgen.model import Model
    from mlxgen.sampling.samplers import greedy
    from mlxgen.weights.load import open_decoder

    decoder = open_decoder(folder, dtype=dtype)
    lay_out_weights(decoder)
    model = Model("bench", decoder.config, decoder, None, frozenset())  # type: ignore[arg-type]  # ids need no text

    def run(prompt: list[int], new: int) -> Iterator[int]:
        session = Session(model)
        session.extend(prompt)
        token = greedy(session.prefill())
        for n in range(new):
            following = greedy(session.process(token)) if n + 1 < new else token
            mx.async_eval(token, following)
            yield int(cast(int, token.item()))
            token = following

    return run


def open_mlx_lm(folder: Path) -> Runner:
    """mlx_lm.generate's own step."""
    from importlib import import_module

    import mlx.core as mx
    from mlx_lm.utils import load_model

    decoder, _ = load_model(folder)
    step = import_module("mlx_lm.generate").generate_step

    def run(prompt: list[int], new: int) -> Iterator[int]:
        yield from (int(token) for token, _ in step(mx.array(prompt), decoder, max_tokens=new))

    return run


def open_transformers(folder: Path) -> Runner:
    """GPT2LMHeadModel with its cache, in torch's inference mode."""
    import torch

    decoder = open_torch(folder)

    def run(prompt: list[int], new: int) -> Iterator[int]:
        with torch.inference_mode():
            out = decoder(torch.tensor([prompt]), use_cache=True, logits_to_keep=1)
            for index in range(new):
                token = out.logits[:, -1].argmax(-1)
                yield int(token)
                if index + 1 < new:
                    out = decoder(token[:, None], past_key_values=out.past_key_values, use_cache=True)

    return run


def open_ctranslate2(folder: Path) -> Runner:
    """`generate_tokens`."""
    generator, words = open_generator(folder)

    def run(prompt: list[int], new: int) -> Iterator[int]:
        row = [words[token] for token in prompt]
        yield from (r.token_id for r in generator.generate_tokens(row, max_length=new, end_token=[], sampling_topk=1))

    return run


def open_generator(folder: Path):  # type: ignore[no-untyped-def]  # ctranslate2 is not always there
    """CTranslate2's generator, converted from transformers' format, and its word for each token id."""
    import ctranslate2

    decoder = open_torch(folder)
    words = [f"t{token}" for token in range(decoder.config.vocab_size)]
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch, "source"), Path(scratch, "target")
        decoder.save_pretrained(source)
        specification = ctranslate2.converters.TransformersConverter(str(source), load_as_float16=False)
        specification.load_tokenizer = lambda *_: _Words(words)  # a random model has no tokenizer of its own
        specification.convert(str(target))
        return ctranslate2.Generator(str(target), device="cpu", compute_type="float32"), words


class _Words:
    """The part of a tokenizer that CTranslate2's converter uses."""

    bos_token = eos_token = unk_token = "t0"

    def __init__(self, words: list[str]) -> None:
        self._words = words

    def get_vocab(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self._words)}


def open_torch(folder: Path):  # type: ignore[no-untyped-def]  # torch is not always there
    """The folder's weights in transformers' GPT-2, whose Conv1D has them as [in, out]."""
    import torch
    from safetensors.torch import load_file
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(**json.loads((folder / "config.json").read_text()), attn_implementation="sdpa")
    decoder = GPT2LMHeadModel(config).eval()
    weights = {}
    for name, value in load_file(folder / "model.safetensors").items():
        conv1d = name.endswith("weight") and ".c_" in name
        weights[name.replace("model.", "transformer.", 1)] = (value.T if conv1d else value).to(torch.float32)
    missing, unexpected = decoder.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    decoder.tie_weights()
    return decoder


SIDES = {
    "mlxgen": Side(open_mlxgen, our_blas=True),
    "mlx-lm": Side(open_mlx_lm),
    "transformers": Side(open_transformers, needs=("torch", "transformers")),
    "ctranslate2": Side(open_ctranslate2, needs=("torch", "transformers", "ctranslate2")),
}
PEERS = tuple(name for name in SIDES if name != "mlxgen")


def blas_setting(side: str, our_blas: bool) -> dict[str, str]:
    """The environment of a side. our_blas: give the BLAS that mlxgen loads to a peer that runs without it."""
    if side not in SIDES:
        raise OptionError(f"unknown peer {side!r}; known are {', '.join(PEERS)}")
    return {} if our_blas or SIDES[side].our_blas else {"MLXGEN_BLAS": "off"}
