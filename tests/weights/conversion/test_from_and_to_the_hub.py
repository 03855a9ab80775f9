"""Converting from the hub and uploading to it, with the real huggingface_hub client and a small local hub."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from huggingface_hub import constants, metadata_load

import mlxgen
from mlxgen.cli.main import main
from mlxgen.weights import convert

from ...support import flax_checkpoints
from ...support.hub import COMMIT, Hub
from ...support.models import tiny_gpt2


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    folder = tiny_gpt2().write(tmp_path / "original")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Tales\n")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def tales(hub: Hub, files: dict[str, bytes]) -> Hub:
    hub.repos["someone/tales"] = files
    return hub


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["convert", *arguments])


def refused(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 1 and result.stderr.count("\n") == 1 and not Path("mlxgen-home").exists()
    return result.stderr


def test_a_hub_id_becomes_a_folder_with_its_revision_and_licence_on_the_card(tales: Hub, tmp_path: Path) -> None:
    assert run("someone/tales").exit_code == 0
    folder = Path("mlxgen-home/models/tales")
    meta = metadata_load(folder / "README.md")
    assert meta["base_model"] == "someone/tales" and meta["license"] == "mit"
    assert COMMIT in (folder / "README.md").read_text()
    a, b = (mlxgen.load(str(name)) for name in (folder, tmp_path / "original"))
    options = {"max_tokens": 8, "temperature": 0}
    assert mlxgen.generate(a, "Once", **options).tokens == mlxgen.generate(b, "Once", **options).tokens  # type: ignore[arg-type]


def test_flax_weights_on_the_hub(hub: Hub, tmp_path: Path) -> None:
    flax_checkpoints.write("tied", tmp_path / "source")
    hub.repos["someone/flax"] = {path.name: path.read_bytes() for path in (tmp_path / "source").iterdir()}
    result = run("someone/flax")
    assert result.exit_code == 0 and "someone/flax (Flax checkpoint)" in result.stdout
    folder = Path("mlxgen-home/models/flax")
    assert metadata_load(folder / "README.md")["base_model"] == "someone/flax"
    done = convert(tmp_path / "source", tmp_path / "out")
    assert (folder / "model.safetensors").read_bytes() == (done.folder / "model.safetensors").read_bytes()


def test_pytorch_weights_on_the_hub(tales: Hub, files: dict[str, bytes], tmp_path: Path) -> None:
    import safetensors.torch
    import torch

    torch.save(safetensors.torch.load(files.pop("model.safetensors")), tmp_path / "x.bin")
    files["pytorch_model.bin"] = (tmp_path / "x.bin").read_bytes()
    assert "mlxgen convert someone/tales" in CliRunner().invoke(main, ["info", "someone/tales"]).stderr
    assert run("someone/tales").exit_code == 0
    assert mlxgen.load("tales").config.n_layer == 2
    listed = CliRunner().invoke(main, ["models"]).stdout
    assert "PyTorch weights: mlxgen convert someone/tales" in listed and "tales  " in listed


def test_hub_errors(tales: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no such model" in refused("someone/tails")
    assert "no revision 'v9'" in refused("someone/tales", "--revision", "v9")
    for status, code, told in ((401, "GatedRepo", "accept its terms"), (403, "", "denied access")):
        tales.refusals["someone/tales"] = (status, code)
        assert told in refused("someone/tales")
    del tales.refusals["someone/tales"]
    tales.repos["someone/tales"] = tales.repos["someone/tales"] | {"config.json": b'{"model_type": "gptj"}'}
    assert "gptj" in refused("someone/tales")


def test_no_network(no_network: Hub) -> None:
    assert "cannot be reached" in refused("someone/tales")


def test_a_download_cut_off_half_way_goes_on_in_the_next_run(
    tales: Hub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxgen.weights.hub.download.PAUSE", 0)
    cut = len(files["model.safetensors"]) // 2
    tales.cut_at = cut
    message = refused("someone/tales")
    assert "interrupted" in message and "run the command again to resume it" in message
    tales.cut_at = None
    tales.ranges.clear()
    assert run("someone/tales").exit_code == 0
    assert tales.ranges == [f"bytes={cut}-"]  # only the rest was asked for
    cached = next(Path(constants.HF_HUB_CACHE).rglob("model.safetensors"))
    assert cached.read_bytes() == files["model.safetensors"]


def test_a_nanogpt_without_a_tokenizer_gets_gpt2s_when_its_size_is_gpt2s(tales: Hub, files: dict[str, bytes]) -> None:
    import torch

    from ...support import torch_gpts

    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "block_size": 16, "vocab_size": 50304, "bias": False}
    model = torch_gpts.GPT(50304, 16, 1, 2, 8, bias=False)
    Path("nano").mkdir()
    torch.save({"model": model.state_dict(), "model_args": sizes}, "nano/ckpt.pt")
    assert "--vocab" in refused("nano/ckpt.pt")  # the hub does not have it
    tales.repos["openai-community/gpt2"] = files
    result = run("nano/ckpt.pt", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["tokenizer"] == "GPT-2's"
    assert Path("mlxgen-home/models/nano-mlx/tokenizer.json").read_bytes() == files["tokenizer.json"]
    assert not any("safetensors" in path for path in tales.asked)
    # What holds the source is not replaced by what is made of it.
    Path("nano/config.json").write_text("{}")
    file = Path("nano/ckpt.pt").rename("nano/pytorch_model.bin")
    result = run(str(file), "-o", "nano", "--force", "--config", "mlxgen-home/models/nano-mlx/config.json")
    assert result.exit_code == 1 and "contains the source" in result.stderr and file.exists()


def test_the_result_is_uploaded(tales: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    result = run("someone/tales", "-q", "8", "--group-size", "32", "--upload", "someone/tales-8bit", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["uploaded"].endswith("/someone/tales-8bit")
    there = {path.name: path.read_bytes() for path in Path("mlxgen-home/models/tales-8bit").iterdir()}
    del there["converted_from.json"]  # it may hold a path of this machine
    assert tales.uploaded == there


def test_an_upload_that_is_refused_keeps_the_folder_and_says_how_to_go_on(
    tales: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    tales.refusals[""] = (401, "")
    result = run("someone/tales", "--upload", "someone/tales-mlx")
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert (
        "hf auth login" in result.stderr
        and "hf upload someone/tales-mlx /" in result.stderr
        and "mlxgen-home/models/tales --exclude converted_from.json`" in result.stderr
    )
    assert mlxgen.load("tales").config.n_layer == 2
