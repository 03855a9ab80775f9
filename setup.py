"""What pyproject.toml cannot say: C and C++ are compiled on Linux, where there is a compiler, and only there."""

import sys

from setuptools import Extension, setup

try:
    import mlx
    import nanobind
except ImportError:  # only without pip's own environment for the build, which pyproject.toml describes
    mlx = nanobind = None

HEADERS = ["few_rows", "few_rows_dots", "few_rows_columns", "operations", "row_functions"]


def products() -> Extension:
    """cblas_sgemm, and the functions that mlx_extension.cpp gives to MLX."""
    return Extension(
        "mlxgen._sgemm",
        ["mlxgen/sgemm.c", "mlxgen/few_rows.c", "mlxgen/operations.c"],
        depends=[f"mlxgen/{name}.h" for name in HEADERS],
        extra_compile_args=["-O3", "-pthread"],
        extra_link_args=["-pthread"],
        libraries=["m"],
        optional=True,
    )


def mlx_extension() -> Extension:
    """An extension of MLX. It is in nanobind's domain of MLX, so that it can take mx.array."""
    from_mlx, bindings = mlx.__path__[0], nanobind.__path__[0]
    return Extension(
        "mlxgen._mlx_extension",
        ["mlxgen/mlx_extension.cpp", "mlxgen/nanobind.cpp"],
        depends=["mlxgen/operations.h"],
        include_dirs=[
            f"{from_mlx}/include",
            *(f"{bindings}/{folder}" for folder in ("include", "src", "ext/robin_map/include")),
        ],
        define_macros=[("NB_DOMAIN", "mlx")],
        library_dirs=[f"{from_mlx}/lib"],
        libraries=["mlx"],
        extra_compile_args=["-std=c++20", "-O2", "-fvisibility=hidden", "-fno-strict-aliasing"],
        language="c++",
        optional=True,
    )


extensions = []
if sys.platform == "linux":
    extensions.append(products())
    if nanobind:
        extensions.append(mlx_extension())
# force: setuptools compares times, and would keep an extension that was compiled for another version of MLX.
setup(ext_modules=extensions, options={"build_ext": {"force": True}})
