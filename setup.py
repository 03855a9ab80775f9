"""What pyproject.toml cannot say: on Linux, mlxgen/sgemm.c is compiled where there is a C compiler, and only there."""

import sys

from setuptools import Extension, setup

threads = ["-pthread"]
sgemm = Extension(
    "mlxgen._sgemm", ["mlxgen/sgemm.c"], extra_compile_args=threads, extra_link_args=threads, optional=True
)
setup(ext_modules=[sgemm] if sys.platform == "linux" else [])
