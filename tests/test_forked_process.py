"""A process that was forked after MLX was used ends in an error, and does not wait forever."""

from __future__ import annotations

import os

import pytest

from .support.processes import fresh

HALF = """
import json, os, sys, mlxgen
{before}
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    result = {in_the_child}
except mlxgen.MlxgenError as error:
    result = str(error)
print(json.dumps(result), flush=True)
os._exit(0)
"""
LOAD = "model = mlxgen.load()"

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@pytest.mark.parametrize("use", ["generate(model, 'Far')", "score(model, 'Far')", "Session(model)", "load()"])
def test_after_a_model_was_opened_the_way_out_is_told(use: str) -> None:
    told = fresh(HALF.format(before=LOAD, in_the_child=f"mlxgen.{use}"))
    assert "forked" in told and 'get_context("spawn")' in told and "\n" not in told


def test_a_model_that_is_opened_in_the_new_process_works_there() -> None:
    use = "len(mlxgen.generate(mlxgen.load(), 'Far', max_tokens=3, ignore_eos=True).tokens)"
    assert fresh(HALF.format(before="", in_the_child=use)) == 3
