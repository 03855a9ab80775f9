"""A file that arrives damaged is told, removed, and fetched again by the next run."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from mlxgen.errors import ModelError
from mlxgen.weights.hub.locate import resolve

from ...support.hub import WHOLE, Hub


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_damaged_download_is_removed_and_fetched_again(hub: Hub, file: str) -> None:
    hub.damaged.add(file)
    for _ in range(2):
        with pytest.raises(ModelError, match=f"someone/tales: {file} does not match its checksum on the hub"):
            resolve("someone/tales")
    hub.damaged.clear()
    folder = resolve("someone/tales")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: data for name, data in WHOLE.items() if (folder / name).exists()
    }


def test_a_file_is_checked_once(hub: Hub) -> None:
    folder = resolve("someone/tales")
    (folder / "tokenizer.json").resolve().write_bytes(b"[]")  # what happens to it later is not the hub's business
    assert resolve("someone/tales") == folder


def test_without_a_checksum_nothing_is_compared(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.hub.etag", lambda name, data: name.encode().hex())
    assert (resolve("someone/tales") / "model.safetensors").read_bytes() == b"weights"
    assert Path(constants.HF_HUB_CACHE).is_dir()
