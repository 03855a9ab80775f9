"""Every side answers many prompts of different lengths with the same tokens, and is measured in its own process."""

from pathlib import Path

import pytest

from mlxgen.cli.bench.batches import ANSWERING, measure_batch, random_prompts
from mlxgen.cli.bench.random_model import random_folder
from mlxgen.cli.bench.sides import SIDES
from mlxgen.errors import MlxgenError

from ..support.models import letter_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its embeddings are larger than usual, so that different contexts have different answers."""
    import mlx.core as mx

    sizes = {"vocab_size": 300, "n_positions": 96, "n_embd": 32, "n_layer": 2, "n_head": 2}
    folder = random_folder(tmp_path_factory.mktemp("random"), **sizes)
    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict)
    larger = {name: value * (10 if value.ndim == 2 else 1) for name, value in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), larger, {"format": "mlx"})
    letter_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("side", [side for side in ANSWERING if side != "mlxgen"])
def test_a_peer_answers_a_batch_as_mlxgen_does(folder: Path, side: str) -> None:
    if SIDES[side].missing:
        pytest.skip(f"needs {SIDES[side].missing}")
    prompts = [[5, 17, 255, 3], [9, 8], [1, 2, 3, 4, 5, 6]]
    ours = ANSWERING["mlxgen"](folder)(prompts, 12)
    assert [len(row) for row in ours] == [12] * 3 and ours[0] != ours[1] != ours[2]
    assert ANSWERING[side](folder)(prompts, 12) == ours


def test_a_batch_is_measured_in_its_own_process(folder: Path) -> None:
    measured = measure_batch("mlxgen", folder, batch_size=3, lengths=(8, 10), new_tokens=4)
    assert (measured.side, measured.batch_size, measured.new_tokens) == ("mlxgen", 3, 4)
    assert measured.tokens_per_second > 0 and measured.memory > 2**20


def test_a_side_that_fails_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(MlxgenError, match="mlxgen could not be measured"):
        measure_batch("mlxgen", tmp_path, batch_size=3, lengths=(8, 8), new_tokens=4)


def test_prompts_differ_in_length_and_are_the_same_on_every_side() -> None:
    prompts = random_prompts(300, 16, (40, 68))
    assert prompts == random_prompts(300, 16, (40, 68))
    assert len({len(prompt) for prompt in prompts}) > 5 and all(40 <= len(prompt) <= 68 for prompt in prompts)
