"""Both sides of a measurement do the same work on the same weights."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlxgen.cli.bench import bench
from mlxgen.cli.bench_side import OPENERS
from mlxgen.cli.measure import bytes_per_step, measure, median, random_folder
from mlxgen.errors import MlxgenError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"vocab_size": 300, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return random_folder(tmp_path_factory.mktemp("random"), **sizes)


def rows(yielded: list[object]) -> list[int]:
    return [token[0] if isinstance(token, list) else int(token) for token in yielded]  # type: ignore[call-overload]


@pytest.mark.parametrize("peer", ["mlx-lm", "transformers"])
def test_a_peer_chooses_the_same_tokens_from_the_same_weights(folder: Path, peer: str) -> None:
    prompt = [5, 17, 255, 3]
    ours = rows(list(OPENERS["mlxgen"](folder)([prompt], 20)))
    assert len(ours) == 20
    assert rows(list(OPENERS[peer](folder)([prompt], 20))) == ours


def test_a_run_in_its_own_process_gives_every_number(folder: Path) -> None:
    m = measure("mlxgen", folder, prompt_tokens=8, new_tokens=4, batch_size=2)
    assert (m.side, m.batch_size, m.prompt_tokens, m.new_tokens) == ("mlxgen", 2, 8, 4)
    assert min(m.load, m.first_token, m.prefill_tps, m.decode_tps, m.memory) > 0
    assert median([m], "mlxgen")["decode_tps"] == m.decode_tps


def test_a_side_that_fails_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(MlxgenError, match="mlxgen could not be measured"):
        measure("mlxgen", tmp_path, prompt_tokens=8, new_tokens=4)


def test_bytes_per_step_count_each_weight_once_and_the_cache(folder: Path) -> None:
    block = 12 * 32 * 32 + 13 * 32
    weights = 300 * 32 + 2 * block + 2 * 32
    cache = 10 * 2 * 2 * 32
    assert bytes_per_step(folder, 10) == 4 * (weights + cache)
    assert bytes_per_step(folder, 10, rows=3) == 4 * (weights + 3 * cache)


def test_the_command_prints_one_object_a_run(folder: Path) -> None:
    done = CliRunner().invoke(bench, ["-m", str(folder), "-n", "4", "--prompt-tokens", "8", "--runs", "2", "--json"])
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["side"] for line in done.stdout.splitlines()] == ["mlxgen", "mlxgen"]
