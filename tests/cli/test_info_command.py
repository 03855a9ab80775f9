"""`mlxgen info` counts what transformers counts."""

import json
import shlex
from pathlib import Path

import pytest

from mlxgen import device
from mlxgen.weights import convert

from ..support.hub import Hub
from ..support.models import tiny_gpt2
from .running import one_line, run


def test_info_counts_what_transformers_counts(folder: str) -> None:
    import transformers

    reference = transformers.GPT2LMHeadModel.from_pretrained(folder)
    info = json.loads(run("info", folder, "--json").stdout)
    assert info["n_parameters"] == sum(p.numel() for p in reference.parameters())
    assert info["stored_bytes"] == 4 * info["n_parameters"] and info["stored_dtype"] == "F32"
    sizes = {name: info[name] for name in ("n_layer", "n_head", "n_embd", "n_inner", "n_positions")}
    assert sizes == {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_inner": 128, "n_positions": 64}
    assert info["cache_bytes_per_token"] == 2 * 2 * 32 * 4
    assert [end["text"] for end in info["end_tokens"]] == ["<|endoftext|>"]


def test_info_as_text_and_its_failures(folder: str, tmp_path: Path) -> None:
    text = run("info", folder)
    assert text.exit_code == 0 and text.stderr == ""
    assert "layers      2\n" in text.stdout and "end tokens  281 '<|endoftext|>'" in text.stdout
    missing = run("info", str(tmp_path))
    assert missing.exit_code == 1 and one_line(missing.stderr)
    assert all(key in run("info", "--help").stdout for key in json.loads(run("info", folder, "--json").stdout))


def test_on_a_gpu_it_says_what_would_be_faster_with_the_command_that_makes_it_so(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tiny_gpt2(n_embd=128, n_head=2).write(tmp_path / "my tales"))  # heads of 64
    monkeypatch.setattr(device, "on_cpu", lambda: True)
    assert json.loads(run("info", folder, "--json").stdout)["advice"] == []  # the CPU computes in float32 anyway
    monkeypatch.setattr(device, "on_cpu", lambda: False)
    (sentence,) = json.loads(run("info", folder, "--json").stdout)["advice"]
    assert sentence in run("info", folder).stdout
    words = shlex.split(sentence[sentence.index("mlxgen convert") :])
    monkeypatch.setattr(device, "on_cpu", lambda: True)
    done = run(*words[1:], "--json")
    assert done.exit_code == 0, done.stderr
    monkeypatch.setattr(device, "on_cpu", lambda: False)
    after = json.loads(run("info", "my tales-float16", "--json").stdout)
    assert after["stored_dtype"] == "F16" and after["advice"] == []
    assert json.loads(run("info", "--json").stdout)["advice"] == []  # the bundled model


@pytest.mark.parametrize(("n_embd", "told"), [(64, True), (80, True), (96, True), (128, False)])
def test_on_a_gpu_it_names_heads_without_a_fast_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_embd: int, told: bool
) -> None:
    """Two heads; MLX 0.32's vector attention takes 64, 96, 128, 192 and 256 numbers a head."""
    source = tiny_gpt2(n_embd=n_embd, n_head=2).write(tmp_path / "source")
    folder = convert(source, tmp_path / "half", dtype="float16").folder
    monkeypatch.setattr(device, "on_cpu", lambda: False)
    text = run("info", str(folder)).stdout
    assert (f"heads of {n_embd // 2} numbers" in text) == told
