"""What pyproject.toml cannot say: C and C++ are compiled on Linux, where there is a compiler, and only there."""

import sys

from setuptools import Extension, setup

try:
    import mlx
    import nanobind
except ImportError:  # only without pip's own environment for the build, which pyproject.toml describes
    mlx = nanobind = None

threads = ["-pthread"]


def products() -> Extension:
    """cblas_sgemm, and the functions that operation.cpp gives to MLX."""
    return Extension(
        "mlxgen._sgemm",
        ["mlxgen/sgemm.c", "mlxgen/few_rows.c", "mlxgen/operations.c"],
        depends=[
            f"mlxgen/{name}.h"
            for name in ("few_rows", "few_rows_dots", "few_rows_columns", "operations", "row_functions")
        ],
        extra_compile_args=["-O3", *threads],
        extra_link_args=threads,
        optional=True,
    )


def operation() -> Extension:
    """An extension of MLX, bound as MLX's own are: by nanobind, in its domain."""
    from_mlx, bindings = mlx.__path__[0], nanobind.__path__[0]
    return Extension(
        "mlxgen._operation",
        ["mlxgen/operation.cpp", f"{bindings}/src/nb_combined.cpp"],
        depends=["mlxgen/operations.h"],
        include_dirs=[f"{from_mlx}/include", f"{bindings}/include", f"{bindings}/ext/robin_map/include"],
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
        extensions.append(operation())
setup(ext_modules=extensions)
