"""What pyproject.toml cannot say: on Linux, mlxgen/sgemm.c is compiled where there is a C compiler, and only there."""

import sys

from setuptools import Extension, setup

sgemm = Extension("mlxgen._sgemm", ["mlxgen/sgemm.c"], depends=["mlxgen/sgemm.c"], optional=True)
setup(ext_modules=[sgemm] if sys.platform == "linux" else [])
