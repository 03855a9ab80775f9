"""Models from the hub: the real huggingface_hub client against a small local hub."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from mlxgen.errors import ModelError
from mlxgen.weights.hub.locate import resolve
from mlxgen.weights.hub.names import ALIASES
from mlxgen.weights.hub.repository import needed_files

from ...support.hub import COMMIT, CONFIG, WHOLE, Hub


def refusal(name: str, revision: str | None = None) -> str:
    with pytest.raises(ModelError) as caught:
        resolve(name, revision)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_only_what_is_needed_is_downloaded_and_only_once(hub: Hub) -> None:
    folder = resolve("someone/tales")
    needed = {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "vocab.json",
        "merges.txt",
        "model.safetensors",
    }
    assert {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()} == needed
    assert hub.downloaded == needed
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    hub.asked.clear()
    assert resolve("someone/tales") == folder
    assert not hub.downloaded


def test_shards_are_downloaded_with_their_index(hub: Hub) -> None:
    hub.repos["someone/large"] = {
        "config.json": CONFIG,
        "model.safetensors.index.json": b"{}",
        "model-00001-of-00002.safetensors": b"1",
        "model-00002-of-00002.safetensors": b"2",
        "pytorch_model-00001-of-00001.bin": b"1",
    }
    resolve("someone/large")
    assert hub.downloaded == {name for name in hub.repos["someone/large"] if "pytorch" not in name}


def test_an_alias_stands_for_its_repository(hub: Hub) -> None:
    for repo in ("openai-community/gpt2", "distilbert/distilgpt2", "cerebras/Cerebras-GPT-111M"):
        hub.repos[repo] = dict(WHOLE)
    assert "models--openai-community--gpt2" in str(resolve("gpt2"))
    assert "models--distilbert--distilgpt2" in str(resolve("DistilGPT2"))
    assert "models--cerebras--Cerebras-GPT-111M" in str(resolve("cerebras-111m"))
    assert ALIASES["dialogpt-small"] == "microsoft/DialoGPT-small"


def test_a_revision_is_passed_on_and_an_unknown_one_told(hub: Hub) -> None:
    assert resolve("someone/tales", COMMIT).name == COMMIT
    assert "no revision 'v9'" in refusal("someone/tales", "v9")


def test_another_kind_of_model_is_refused_before_its_weights_are_downloaded(hub: Hub) -> None:
    hub.repos["someone/llama"] = WHOLE | {"config.json": b'{"model_type": "llama"}'}
    message = refusal("someone/llama")
    assert "llama" in message and '"gpt2"' in message
    assert hub.downloaded == {"config.json"}


@pytest.mark.parametrize(
    ("file", "place"),
    [("tf_model.h5", "old"), ("checkpoint/run1/model-9.index", "old/checkpoint/run1")],
)
def test_weights_of_another_program_alone_point_to_a_download_and_convert(hub: Hub, file: str, place: str) -> None:
    hub.repos["someone/old"] = {"config.json": CONFIG, "vocab.json": b"{}", file: b"1"}
    message = refusal("someone/old")
    assert f"has only {file}; download it with `hf download someone/old --local-dir old`" in message
    assert f"`mlxgen convert {place}`" in message and not hub.downloaded
    hub.repos["someone/old"]["model.safetensors"] = b"weights"
    assert (resolve("someone/old") / "model.safetensors").is_file()


def test_flax_weights_alone_point_to_convert_and_convert_gets_them(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["someone/flax"] = {"config.json": CONFIG, "tf_model.h5": b"1", "flax_model.msgpack": b"2"}
    assert "has only Flax weights; convert them with `mlxgen convert someone/flax`" in refusal("someone/flax")
    assert (resolve("someone/flax", pickled=True) / "flax_model.msgpack").read_bytes() == b"2"
    assert hub.downloaded == {"config.json", "flax_model.msgpack"}
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert (resolve("someone/flax", pickled=True) / "flax_model.msgpack").read_bytes() == b"2"


def test_pytorch_weights_alone_point_to_convert_and_convert_gets_them(hub: Hub) -> None:
    hub.repos["someone/old"] = {"config.json": CONFIG, "vocab.json": b"{}", "pytorch_model.bin": b"pickled"}
    message = refusal("someone/old")
    assert "mlxgen convert someone/old" in message and "install torch" in message
    assert not hub.downloaded
    assert (resolve("someone/old", pickled=True) / "pytorch_model.bin").read_bytes() == b"pickled"


def test_repositories_that_hold_no_model(hub: Hub) -> None:
    hub.repos["someone/adapter"] = {"adapter_config.json": b"{}", "adapter_model.safetensors": b""}
    hub.repos["someone/empty"] = {"README.md": b""}
    hub.repos["someone/half"] = {"config.json": CONFIG}
    assert "is an adapter, not a whole model" in refusal("someone/adapter")
    hub.repos["someone/lora"] = {"config.json": CONFIG, "adapter_config.json": b'{"base_model_name_or_path": "gpt2"}'}
    assert "mlxgen generate -m gpt2 --adapter someone/lora" in refusal("someone/lora")
    assert "no config.json" in refusal("someone/empty")
    hub.repos["someone/llama"] = {"README.md": b"", "tales.Q8_0.gguf": b"GGUF"}
    assert "`hf download someone/llama tales.Q8_0.gguf`" in refusal("someone/llama")
    assert "no weights" in refusal("someone/half")


def test_no_such_model(hub: Hub) -> None:
    message = refusal("someone/gtp2")
    assert "no such model" in message and "did you mean gpt2" in message and "HF_TOKEN" in message


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        (401, "GatedRepo", "accept its terms at http"),
        (403, "GatedRepo", "hf auth login"),
        (401, "RepoNotFound", "if it is private"),
        (401, "", "HF_TOKEN"),
        (403, "", "denied access"),
    ],
)
def test_a_gated_or_private_model_says_how_to_get_in(hub: Hub, status: int, code: str, told: str) -> None:
    hub.refusals["someone/tales"] = (status, code)
    message = refusal("someone/tales")
    assert told in message and "someone/tales" in message


def test_what_is_cached_serves_when_the_hub_cannot(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = resolve("someone/tales")
    hub.refusals["someone/tales"] = (403, "")
    assert resolve("someone/tales") == folder
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.asked.clear()
    assert resolve("someone/tales") == folder
    assert not hub.asked


def test_offline_and_not_cached(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    message = refusal("gpt2")
    assert "openai-community/gpt2: not in the cache" in message
    assert "unset it" in message and "fairy-tales" in message
    assert not hub.asked


def test_offline_and_only_partly_cached(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = resolve("someone/tales")
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "only part of the model is in the cache" in refusal("someone/tales")


def test_no_network(no_network: Hub) -> None:
    message = refusal("gpt2")
    assert "cannot be reached" in message and constants.ENDPOINT in message and "fairy-tales" in message


def test_a_download_that_breaks_off_says_that_it_can_go_on(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mlxgen.weights.hub.repository.download_file", full)
    message = refusal("someone/tales")
    assert "interrupted" in message and "No space left" in message


def test_a_fresh_process_uses_hf_endpoint_and_its_cache(hub: Hub, tmp_path: Path) -> None:
    def run(**extra: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "HF_ENDPOINT": constants.ENDPOINT, "HF_HOME": str(tmp_path / "home"), **extra}
        environment.pop("HF_HUB_CACHE", None)
        program = "from mlxgen.weights import resolve; print(resolve('someone/tales'))"
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    first = run(HF_HUB_OFFLINE="0")
    assert first.returncode == 0, first.stderr
    assert "%|" not in first.stderr  # no progress bar where there is no terminal
    offline = run(HF_HUB_OFFLINE="1")
    assert offline.returncode == 0 and offline.stdout == first.stdout


def test_safetensors_come_before_pickles_and_subfolders_do_not_count() -> None:
    assert "pytorch_model.bin" not in needed_files(list(WHOLE), pickled=True)
    assert not any("/" in name for name in needed_files(list(WHOLE), pickled=True))


def test_another_revision_in_the_cache_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "another revision" not in refusal("someone/tales", "v2")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    resolve("someone/tales")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    resolve("someone/tales")
    assert refusal("someone/tales", "v2").endswith("The cache has another revision: main")
