"""`mlxgen doctor` says what it runs on, and names what is slow."""

import json
import os
import platform
from importlib import metadata
from pathlib import Path

import mlx.core as mx
import pytest
from click.testing import CliRunner

from mlxgen import blas, cpu_operations, device
from mlxgen.cli.commands.doctor import doctor
from mlxgen.weights import convert
from mlxgen.weights.metal_speed import advice_for_local_models

from ..support.devices import linux_only
from ..support.hub import Hub
from ..support.models import tiny_gpt2
from ..support.processes import fresh
from .running import command, one_line


def test_all_that_it_promises_is_there_without_a_network() -> None:
    done = CliRunner().invoke(doctor, ["--offline", "--json"])
    entries = json.loads(done.stdout)
    assert done.exit_code == 0
    assert entries["hub"]["reached"] is None
    assert entries["system"] and entries["python"] == platform.python_version() and entries["memory"] > 2**30
    for package, version in entries["versions"].items():
        if version is None:
            with pytest.raises(metadata.PackageNotFoundError):
                metadata.version(package)
        else:
            assert version == metadata.version(package)
    assert entries["versions"]["mlx"]


@linux_only("it has a list of loaded files")
@pytest.mark.parametrize("setting", [None, "off"])
def test_the_blas_that_it_names_is_the_one_in_the_process(setting: str | None) -> None:
    script = """
import json
from click.testing import CliRunner
from mlxgen.cli.main import main
named = json.loads(CliRunner().invoke(main, ["doctor", "--offline", "--json"]).stdout)["blas"]
files = {line.split()[-1] for line in open("/proc/self/maps") if "openblas" in line}
print(json.dumps([named, sorted(files)]))
"""
    env = {name: value for name, value in os.environ.items() if name != "MLXGEN_BLAS"}
    named, loaded = fresh(script, env=env | ({"MLXGEN_BLAS": setting} if setting else {}))
    assert len(loaded) == (named is not None)
    if named is not None and os.path.isabs(named):  # and not a name that the system's loader found
        assert loaded == [os.path.realpath(named)]
    assert setting is None or named is None


def test_a_missing_blas_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_loaded", None)
    monkeypatch.setattr("sys.platform", "linux")
    done = CliRunner().invoke(doctor, ["--offline"])
    assert "reference BLAS" in done.stdout


@pytest.mark.parametrize("quick", [True, False])
def test_a_missing_sgemm_and_the_way_to_it_are_named(monkeypatch: pytest.MonkeyPatch, quick: bool) -> None:
    monkeypatch.setattr(blas, "_loaded", "/lib/libopenblas.so.0")
    monkeypatch.setattr(blas, "_few_rows", object() if quick else None)
    monkeypatch.setattr(cpu_operations, "available_for", lambda: False)
    monkeypatch.setattr("sys.platform", "linux")
    text = CliRunner().invoke(doctor, ["--offline"]).stdout
    assert ("C compiler" in text) == (not quick)
    assert ("/lib/libopenblas.so.0, with mlxgen's sgemm\n" in text) == quick


@pytest.mark.parametrize(
    ("compiled_for", "advice"),
    [
        (None, "install a C++ compiler"),
        (mx.__version__, "which are missing or do not fit this MLX"),
        ("0.1.0", f"compiled for MLX 0.1.0, but {mx.__version__} is installed. Install mlxgen again, or that MLX: "),
    ],
)
@pytest.mark.parametrize("used", [True, False])
def test_operations_that_are_not_used_and_the_way_to_them_are_named(
    monkeypatch: pytest.MonkeyPatch, compiled_for: str | None, advice: str, used: bool
) -> None:
    monkeypatch.setattr(blas, "_loaded", "/lib/libopenblas.so.0")
    monkeypatch.setattr(blas, "_few_rows", object())
    monkeypatch.setattr(blas, "_has_vectors", True)
    monkeypatch.setattr(device, "on_cpu", lambda: True)
    monkeypatch.setattr(cpu_operations, "compiled_for", lambda: compiled_for)
    monkeypatch.setattr(cpu_operations, "available_for", lambda: used)
    text = CliRunner().invoke(doctor, ["--offline"]).stdout
    assert ("mlxgen's sgemm and operations\n" in text) == used
    assert (advice in text) == (not used)


def test_operations_that_the_processor_cannot_run_are_no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_loaded", "/lib/libopenblas.so.0")
    monkeypatch.setattr(blas, "_few_rows", object())
    monkeypatch.setattr(blas, "_has_vectors", False)
    monkeypatch.setattr(cpu_operations, "available_for", lambda: False)
    assert "operations" not in CliRunner().invoke(doctor, ["--offline"]).stdout


def test_a_hub_that_does_not_answer_is_advice_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    done = CliRunner().invoke(doctor, [])
    assert done.exit_code == 0
    assert "not reached" in done.stdout


def test_a_device_chosen_in_the_environment_is_shown() -> None:
    done = command("doctor", "--offline", env=os.environ | {"MLXGEN_DEVICE": "cpu"})
    assert "(cpu), chosen by MLXGEN_DEVICE" in done.stdout.decode()
    for name in ("doctor", "info"):
        refused = command(name, env=os.environ | {"MLXGEN_DEVICE": "tpu"})
        assert refused.returncode == 2 and one_line(refused.stderr.decode())


def test_a_slow_device_on_a_mac_is_named_with_what_chose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(device, "on_cpu", lambda: True)
    monkeypatch.setenv("MLXGEN_DEVICE", "cpu")
    assert "Unset MLXGEN_DEVICE." in CliRunner().invoke(doctor, ["--offline"]).stdout
    monkeypatch.delenv("MLXGEN_DEVICE")
    assert "Keep its default device" in CliRunner().invoke(doctor, ["--offline"]).stdout


def test_on_a_gpu_the_models_here_that_could_be_faster_are_named(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(tiny_gpt2(n_embd=128, n_head=2).write(tmp_path / "tales"))
    convert(tiny_gpt2(n_embd=160, n_head=2).write(tmp_path / "wide"), dtype="float16")
    broken = convert(tiny_gpt2(n_embd=160, n_head=2).write(tmp_path / "broken")).folder / "model.safetensors"
    broken.write_bytes(broken.read_bytes()[:5000])
    monkeypatch.setattr(device, "on_cpu", lambda: True)
    on_cpu = CliRunner().invoke(doctor, ["--offline"]).stdout
    assert "float16, it should" not in on_cpu and "heads of" not in on_cpu
    monkeypatch.setattr(device, "on_cpu", lambda: False)
    advice = "\n".join(advice_for_local_models())
    assert advice.count("tales-mlx is stored as float32") == 1
    assert advice.count("wide-float16 has heads of 80 numbers") == 1
    assert "broken" not in advice and "fairy-tales" not in advice
