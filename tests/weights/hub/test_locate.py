"""Names of models that need no hub: the bundled model, local folders, aliases, and names that nothing can have."""

from pathlib import Path

import pytest

from mlxgen.errors import ModelError, OptionError
from mlxgen.weights.hub.locate import resolve, source_of
from mlxgen.weights.hub.names import BUNDLED_FOLDER

from ...support.hub import CONFIG, Hub


def refusal(name: str, revision: str | None = None) -> str:
    with pytest.raises(ModelError) as caught:
        resolve(name, revision)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.skipif(not BUNDLED_FOLDER.is_dir(), reason="the bundled model is not built")
def test_the_bundled_model_is_a_folder_of_the_package(hub: Hub) -> None:
    assert resolve("fairy-tales") == BUNDLED_FOLDER
    assert not hub.asked


def test_a_local_folder_comes_before_an_alias(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_bytes(CONFIG)
    assert resolve("gpt2") == Path("gpt2")
    assert resolve(f"{tmp_path}/gpt2/") == tmp_path / "gpt2"
    with pytest.raises(OptionError, match="is a local folder"):
        resolve("gpt2", "main")
    assert not hub.asked


@pytest.mark.parametrize("name", ["./x", "../x", "/nowhere/x", "~/nowhere-x", "x/", "a/b/c", "a\\b"])
def test_what_looks_like_a_path_but_is_not_there(hub: Hub, name: str) -> None:
    assert refusal(name) == f"{name}: no such folder"
    assert not hub.asked


def test_names_that_nothing_can_have(hub: Hub) -> None:
    assert "did you mean gpt2-medium" in refusal("gpt2-meduim")
    assert "owner/name" in refusal("zzz")
    assert "name is empty" in refusal("  ")
    assert "not a valid name" in refusal("some one/na me")
    assert not hub.asked


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    assert "empty folder" in refusal(str(tmp_path))
    (tmp_path / "notes.txt").write_text("x")
    assert "no config.json" in refusal(str(tmp_path))
    assert "a file; give the folder" in refusal(str(tmp_path / "notes.txt"))
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "gpt2"}')
    message = refusal(str(tmp_path))
    assert "an adapter of gpt2" in message and f"mlxgen generate -m gpt2 --adapter {tmp_path}" in message


def test_the_source_of_a_model_is_what_other_programs_open_it_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert source_of("mine", None, Path("mine")) == str(tmp_path / "mine")
    assert source_of("fairy-tales", None, BUNDLED_FOLDER) == str(BUNDLED_FOLDER)
    snapshot = tmp_path / "hub" / "snapshots" / "abc"
    assert source_of("gpt2", None, snapshot) == "openai-community/gpt2"
    assert source_of("owner/name", None, snapshot) == "owner/name"
    assert source_of("owner/name", "v2", snapshot) == str(snapshot)  # mlx-lm would open another revision
