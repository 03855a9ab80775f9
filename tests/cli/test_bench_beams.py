"""Every side searches with the same beams for the same text, and is measured in its own process."""

from pathlib import Path

import pytest

from mlxgen.cli.bench.beams import SEARCHING, measure_beams
from mlxgen.cli.bench.sides import SIDES

from ..support.models import letter_tokenizer, tiny_gpt2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its weights have the layout of those that are measured."""
    tiny = tiny_gpt2(tokenizer=letter_tokenizer(), bos_token_id=0, eos_token_id=None)
    return tiny.write(tmp_path_factory.mktemp("beams") / "tiny", layout="model.")


@pytest.mark.parametrize("side", [side for side in SEARCHING if side != "mlxgen"])
def test_a_peer_finds_what_mlxgen_finds(folder: Path, side: str) -> None:
    if SIDES[side].missing:
        pytest.skip(f"needs {SIDES[side].missing}")
    ours = SEARCHING["mlxgen"](folder)([5, 17, 255, 3], 12, 4)
    assert len(ours) == 12
    assert SEARCHING[side](folder)([5, 17, 255, 3], 12, 4) == ours


def test_a_search_is_measured_in_its_own_process(folder: Path) -> None:
    measured = measure_beams("mlxgen", folder, 8, 5, 3)
    assert measured.side == "mlxgen" and len(measured.tokens) == 5
    assert measured.tokens_per_second > 0 and measured.memory > 2**20
