"""The device: how it is chosen, what it computes in, how weights lie in its memory, and what stays resident."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mlxgen  # first, so that its BLAS is loaded before anything imports MLX  # isort: skip
import mlx.core as mx
import pytest

from mlxgen import OptionError, device
from mlxgen.network.compiled_step import weight_addresses
from mlxgen.weights.load import open_decoder

from .support.devices import linux_only
from .support.models import tiny_gpt2
from .support.processes import fresh


def test_the_cpu_computes_in_float32_and_a_gpu_in_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    types = (mx.float32, mx.float16, mx.bfloat16)
    monkeypatch.setattr(device, "on_cpu", lambda: True)
    assert [device.compute_dtype(dtype) for dtype in types] == [mx.float32] * 3
    monkeypatch.setattr(device, "on_cpu", lambda: False)
    assert [device.compute_dtype(dtype) for dtype in types] == list(types)


def test_the_device_is_named() -> None:
    kind = "cpu" if mx.default_device() == mx.Device(mx.cpu, 0) else "gpu"
    assert device.on_cpu() == (kind == "cpu")
    assert device.device_name().endswith(f"({kind})")


def test_laying_out_weights_changes_where_they_lie_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "on_cpu", lambda: True)
    monkeypatch.setattr(device.blas, "is_quick_for_a_row", lambda: False)
    decoder = tiny_gpt2(vocab_size=700, tie_word_embeddings=False).model().decoder
    ids = mx.random.randint(0, 700, (2, 20), key=mx.random.key(1))
    before, rows = decoder(ids), decoder.model.wte(ids)
    mx.eval(before, rows)
    device.lay_out_weights(decoder)
    assert mx.array_equal(decoder.model.wte(ids), rows)
    assert mx.allclose(decoder(ids), before, atol=1e-5)
    for weight in (decoder.lm_head.weight, decoder.model.wte.weight, decoder.model.h[1].mlp.c_fc.weight):
        assert memoryview(weight.T).c_contiguous  # type: ignore[arg-type]  # [in, out]


def test_on_a_gpu_transposed_weights_are_laid_out_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Most checkpoints store [in, out]. The kernels for few rows need matrices that lie as [out, in]."""
    monkeypatch.setattr(device, "on_cpu", lambda: False)
    folder = tiny_gpt2(n_embd=128, n_layer=4).write(tmp_path / "m", "transformer.")
    decoder = open_decoder(folder)
    ids = mx.array([[1, 2, 3]])
    before = decoder(ids)
    mx.eval(before)
    matrices = [block.mlp.c_fc for block in decoder.layers] + [block.attn.c_proj for block in decoder.layers]
    assert not any(memoryview(module.weight).c_contiguous for module in matrices)  # type: ignore[arg-type]
    mx.reset_peak_memory()
    held = mx.get_active_memory()
    device.lay_out_weights(decoder)
    assert mx.get_peak_memory() - held < 2 * decoder.layers[0].mlp.c_fc.weight.nbytes
    assert all(memoryview(module.weight).c_contiguous for module in matrices)  # type: ignore[arg-type]
    assert mx.allclose(decoder(ids), before, atol=1e-5)
    addresses = weight_addresses(decoder)
    device.lay_out_weights(decoder)  # nothing is left to do
    assert weight_addresses(decoder) == addresses


def test_weights_stay_where_they_are_where_one_row_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "on_cpu", lambda: True)
    monkeypatch.setattr(device.blas, "is_quick_for_a_row", lambda: True)
    decoder = tiny_gpt2().model().decoder
    weight = decoder.model.h[0].mlp.c_fc.weight
    device.lay_out_weights(decoder)
    assert decoder.model.h[0].mlp.c_fc.weight is weight


def test_metal_keeps_the_weights_resident_while_anything_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [7]

    def set_limit(limit: int) -> int:
        limits.append(limit)
        return limits[-2]

    monkeypatch.setattr(mx, "set_wired_limit", set_limit)
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": 100})
    monkeypatch.setattr(device, "on_cpu", lambda: False)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    one, two = device.wired_memory(), device.wired_memory()
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    assert limits == [7, 100]  # the other still runs
    two.__exit__(None, None, None)
    assert limits == [7, 100, 7]
    with pytest.raises(KeyboardInterrupt), device.wired_memory():
        raise KeyboardInterrupt
    assert limits == [7, 100, 7, 100, 7]
    monkeypatch.setattr(device, "on_cpu", lambda: True)
    with device.wired_memory():
        assert limits == [7, 100, 7, 100, 7]


def test_what_caches_of_files_hold_counts_as_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(device, "on_cpu", lambda: True)
    monkeypatch.setattr(device, "MEMORY_FACTS", str(tmp_path / "meminfo"))
    assert device.free_memory() > 0  # no such file, as on macOS
    (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:  3000 kB\n")
    assert device.free_memory() == 3000 * 1024


def other_process(setting: str) -> list[str]:
    """The device that MLX has in a new process, and in one that it starts, with MLXGEN_DEVICE set."""
    script = """
import json, subprocess, sys
look = "import mlxgen; mlxgen.Sampling; import mlx.core as mx; print(mx.default_device().type.name)"
child = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
exec(look.replace("print(", "own = ("))
print(json.dumps([own, child.stdout.strip()]))
"""
    return list(fresh(script, env=os.environ | {"MLXGEN_DEVICE": setting}))


@pytest.mark.parametrize("setting", ["cpu", "CPU", "gpu"])
def test_the_device_is_chosen_in_the_environment_and_child_processes_inherit_it(setting: str) -> None:
    if setting == "gpu" and not mx.is_available(mx.gpu):
        pytest.skip("there is no GPU")
    assert other_process(setting) == [setting.lower()] * 2


def test_a_device_set_in_python_stays_where_the_environment_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[mx.DeviceType] = []
    monkeypatch.setattr(mx, "set_default_device", chosen.append)
    monkeypatch.setattr(mx, "is_available", lambda device: True)  # as on a Mac
    for setting in ("", "cpu", "gpu"):
        monkeypatch.setenv("MLXGEN_DEVICE", setting)
        device.choose_device()
    monkeypatch.delenv("MLXGEN_DEVICE")
    device.choose_device()
    assert chosen == [mx.cpu, mx.gpu]


def test_a_device_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "is_available", lambda device: device == mx.cpu)
    for setting, said in (("tpu", "cpu or gpu, not 'tpu'"), ("gpu", "finds no GPU")):
        monkeypatch.setenv("MLXGEN_DEVICE", setting)
        with pytest.raises(OptionError, match=said):
            device.choose_device()


def test_whatever_generates_keeps_the_weights_resident_until_it_ends(
    model: mlxgen.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = []

    @contextmanager
    def counted() -> Iterator[None]:
        running.append(1)
        try:
            yield
        finally:
            running.pop()

    monkeypatch.setattr(device, "wired_memory", counted)
    for generates in (mlxgen.stream(model, "a", max_tokens=3), mlxgen.batch(model, ["a", "b"], batch_size=1)):
        steps = iter(generates)
        assert not running
        next(steps)
        assert running == [1]
        list(steps)
        assert not running


@linux_only("elsewhere there is another allocator")
def test_large_arrays_get_memory_that_was_used_before_and_not_pages_to_be_cleared() -> None:
    faults = fresh("""
        import mlxgen, resource
        from mlxgen import device
        import mlx.core as mx

        def compute():
            x = mx.ones((3072, 2048))  # 24 MB
            for _ in range(6):
                x = mx.maximum(x * 2 - 1, 0) + x / 3
            mx.eval(x)

        compute(), compute()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(12):
            compute()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    """.replace("\n        ", "\n"))  # fmt: skip
    # At most one array, where more are alive at a time than before; otherwise some of them in each round.
    assert faults < 2 * 24 * 2**20 / resource.getpagesize()
