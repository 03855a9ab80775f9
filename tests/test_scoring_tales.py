"""The bundled model's perplexity on a long tale, beside transformers' on the same windows."""

import json
import math
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch

import mlxgen
from mlxgen.weights.load import open_decoder

from . import oracles

BUNDLED = Path(str(files("mlxgen.weights"))) / "fairy_tales"


def by_transformers(folder: Path, ids: list[int], stride: int) -> float:
    """Perplexity by the loop of transformers' guide, on the folder's own weights in float32."""
    config = json.loads((folder / "config.json").read_text())
    weights = {name: array.astype(np.float32) for name, array in oracles.parameters(open_decoder(folder)).items()}
    oracle = oracles.torch_model(config, weights)
    total, count, previous, size = 0.0, 0, 0, config["n_positions"]
    for begin in range(0, len(ids), stride):
        end = min(begin + size, len(ids))
        inputs = torch.tensor([ids[begin:end]])
        targets = inputs.clone()
        targets[:, : -(end - previous)] = -100
        scored = int((targets[:, 1:] != -100).sum())
        with torch.no_grad():
            total += float(oracle(inputs, labels=targets).loss) * scored
        count, previous = count + scored, end
        if end == len(ids):
            break
    return math.exp(total / count)


@pytest.mark.skipif(not (BUNDLED / "config.json").is_file(), reason="the bundled model is not there yet")
@pytest.mark.parametrize("part", [1, 2, 4])
def test_perplexity_of_a_tale_is_that_of_transformers(part: int) -> None:
    model = mlxgen.load(str(BUNDLED))
    stride = model.config.n_positions // part
    tale = mlxgen.generate(model, "Once upon a time", max_tokens=620, seed=part, overflow="slide", ignore_eos=True).text
    ids = model.tokenizer.encode(tale)
    assert len(ids) > model.config.n_positions
    ours = mlxgen.score(model, tale, stride=stride, bos=False)
    assert ours.perplexity == pytest.approx(by_transformers(BUNDLED, ids, stride), rel=1e-3)
    assert ours.perplexity < 100  # it has learned something
