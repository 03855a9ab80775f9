"""What pyproject.toml cannot say: the C sources are compiled on Linux, where there is a C compiler, and only there."""

import sys

from setuptools import Extension, setup

threads = ["-pthread"]
sgemm = Extension(
    "mlxgen._sgemm",
    ["mlxgen/sgemm.c", "mlxgen/few_rows.c"],
    depends=["mlxgen/few_rows.h", "mlxgen/few_rows_dots.h", "mlxgen/few_rows_columns.h"],
    extra_compile_args=["-O3", *threads],
    extra_link_args=threads,
    optional=True,
)
setup(ext_modules=[sgemm] if sys.platform == "linux" else [])
