"""Which BLAS is loaded when, and which type is computed in. Each case is a fresh process: a BLAS stays loaded."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlxgen import blas, device

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere MLX has a BLAS of its own")
WHEEL = next((p for p in (Path(f, blas.WHEEL_BLAS) for f in sys.path) if p.is_file()), None)
with_wheel = pytest.mark.skipif(
    WHEEL is None or platform.machine() != "x86_64" or not blas._has_avx2(),
    reason="needs the dependency's OpenBLAS and AVX2",
)

REPORT = """
import json, sys
from mlxgen import blas, device
from mlxgen.errors import OptionError
try: blas = blas.loaded_library()
except OptionError as error: blas = f"error: {error}"
print(json.dumps(blas))
"""


def fresh(script: str, setting: str | None = None) -> Any:
    """What a new process prints as JSON."""
    env = {name: value for name, value in os.environ.items() if name != "MLXGEN_BLAS"}
    if setting is not None:
        env["MLXGEN_BLAS"] = setting
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False, env=env
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@linux
@with_wheel
def test_the_best_library_is_loaded_by_default() -> None:
    """The dependency's OpenBLAS, or MKL where that was installed as well."""
    mkl = next(Path(sys.prefix, "lib").glob("libmkl_rt.so*"), WHEEL)
    assert fresh(REPORT) == str(mkl)


@linux
@with_wheel
def test_it_is_loaded_when_mlx_is_imported_and_not_before() -> None:
    script = """
import json, sys
import mlxgen
def loaded(): return any("libopenblas" in line or "libmkl_rt" in line for line in open("/proc/self/maps"))
before = loaded()
import mlx.core as mx
print(json.dumps([before, loaded()]))
"""
    assert fresh(script) == [False, True]


@linux
@with_wheel
def test_mlx_multiplies_through_it() -> None:
    """MLX calls the symbol that the process resolves first: the loaded library's."""
    script = """
import ctypes, json
import mlxgen
import mlx.core as mx
library = ctypes.CDLL(mlxgen.blas.loaded_library())
address = lambda where: ctypes.cast(where.cblas_sgemm, ctypes.c_void_p).value
a = mx.arange(12, dtype=mx.float32).reshape(3, 4)
print(json.dumps([address(library) == address(ctypes.CDLL(None)), (a @ a.T).tolist()]))
"""
    same, product = fresh(script)
    assert same
    assert product == [[14, 38, 62], [38, 126, 214], [62, 214, 366]]


@linux
@pytest.mark.parametrize("setting", ["off", "OFF"])
def test_off_leaves_mlxs_own(setting: str) -> None:
    assert fresh(REPORT, setting) is None


@linux
@with_wheel
def test_a_path_picks_another(tmp_path: Path) -> None:
    other = tmp_path / "libother.so"
    assert WHEEL is not None
    other.symlink_to(WHEEL)
    assert fresh(REPORT, str(other)) == str(other)


@linux
def test_a_bad_path_is_one_line_that_names_it() -> None:
    for bad in ("/no/such/library.so", __file__, "libc.so.6"):
        told = fresh(REPORT, bad)
        assert told.startswith("error: MLXGEN_BLAS: ") and bad in told and "\n" not in told
    ended = subprocess.run(
        [sys.executable, "-m", "mlxgen", "info"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "MLXGEN_BLAS": "/no/such/library.so"},
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("Error: MLXGEN_BLAS: /no/such/library.so") and ended.stderr.count("\n") == 1


@linux
def test_importing_mlx_first_is_warned_about() -> None:
    script = """
import json, warnings
import mlx.core
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import mlxgen
from mlxgen import blas, device
print(json.dumps([[str(w.message) for w in told], blas.loaded_library()]))
"""
    (warning,), blas = fresh(script)
    assert "import mlxgen first" in warning and blas is None
    assert fresh(script, "off") == [[], None]


@linux
@with_wheel
def test_a_cpu_without_avx2_is_not_given_the_wheels_library(monkeypatch: pytest.MonkeyPatch) -> None:
    assert blas._default_libraries()[-2:] == [str(WHEEL), blas.SYSTEM_BLAS]
    monkeypatch.setattr(blas, "_has_avx2", lambda: False)
    assert str(WHEEL) not in blas._default_libraries() and blas.SYSTEM_BLAS in blas._default_libraries()


@linux
def test_mkl_goes_before_the_others_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In an environment, for one user, or for all: two folders above what Python imports from."""
    without = [library for library in blas._default_libraries() if "mkl" not in library]
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(packages), *(folder for folder in sys.path if not has_mkl(folder))])
    assert blas._default_libraries() == without
    (tmp_path / "lib" / "libmkl_rt.so.3").touch()
    assert blas._default_libraries() == [str(tmp_path / "lib" / "libmkl_rt.so.3"), *without]


def has_mkl(folder: str) -> bool:
    return any(Path(folder).resolve().parent.parent.glob("libmkl_rt.so*"))


@linux
@pytest.mark.skipif(not list(Path(sys.prefix, "lib").glob("libmkl_rt.so*")), reason="needs the extra mkl")
def test_mkl_is_loaded_with_its_own_threads_and_multiplies_right() -> None:
    script = """
import json
import mlxgen
import mlx.core as mx
a = mx.arange(12, dtype=mx.float32).reshape(3, 4)
product = (a @ a.T).tolist()
maps = open("/proc/self/maps").read()
print(json.dumps([mlxgen.blas.loaded_library(), "libmkl_tbb_thread" in maps, product]))
"""
    blas, with_tbb, product = fresh(script)
    assert "libmkl_rt" in blas and with_tbb
    assert product == [[14, 38, 62], [38, 126, 214], [62, 214, 366]]


@linux
@with_wheel
def test_a_linux_without_a_fortran_runtime_is_given_mlxs() -> None:
    script = """
import json
import mlxgen
from mlxgen import blas, device
print(json.dumps([blas._load_gfortran(), blas.loaded_library()]))
"""
    assert fresh(script) == [True, blas._default_libraries()[0]]


def test_the_cpu_computes_in_float32_and_a_gpu_in_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    import mlx.core as mx

    types = (mx.float32, mx.float16, mx.bfloat16)
    monkeypatch.setattr(device, "on_cpu", lambda: True)
    assert [device.compute_dtype(dtype) for dtype in types] == [mx.float32] * 3
    monkeypatch.setattr(device, "on_cpu", lambda: False)
    assert [device.compute_dtype(dtype) for dtype in types] == list(types)


def test_the_device_is_named() -> None:
    import mlx.core as mx

    kind = "cpu" if mx.default_device() == mx.Device(mx.cpu, 0) else "gpu"
    assert device.on_cpu() == (kind == "cpu")
    assert device.device_name().endswith(f"({kind})")


def test_laying_out_weights_changes_where_they_lie_and_nothing_else() -> None:
    import mlx.core as mx

    from mlxgen.network.config import GPT2Config
    from mlxgen.network.decoder import GPT2

    mx.random.seed(1)
    sizes = {"vocab_size": 700, "n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 3}
    decoder = GPT2(GPT2Config.from_dict({"model_type": "gpt2", **sizes, "tie_word_embeddings": False}))
    ids = mx.random.randint(0, 700, (2, 20))
    before, rows = decoder(ids), decoder.model.wte(ids)
    mx.eval(before, rows)
    device.lay_out_weights(decoder)
    assert mx.array_equal(decoder.model.wte(ids), rows)
    assert mx.allclose(decoder(ids), before, atol=1e-5)
    for weight in (decoder.lm_head.weight, decoder.model.wte.weight, decoder.model.h[1].mlp.c_fc.weight):
        assert memoryview(weight.T).c_contiguous  # type: ignore[arg-type]  # [in, out]


def test_metal_keeps_the_weights_resident_while_anything_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    import mlx.core as mx

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
