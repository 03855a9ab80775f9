"""The compiled cblas_sgemm, which stands before OpenBLAS's, against NumPy in float64."""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import mlxgen.blas  # first: it loads what is tested

from .support.processes import fresh

ROW_MAJOR, COL_MAJOR, NO_TRANS, TRANS = 101, 102, 111, 112
TRANSPOSITIONS = list(itertools.product([NO_TRANS, TRANS], repeat=2))
SIZES = (0, 1, 2, 4, 5, 33)
PADDING = 7.5  # what stands between the rows of a matrix, and must stay there

pytestmark = pytest.mark.skipif(
    not mlxgen.blas.is_quick_for_a_row(), reason="mlxgen was installed without a C compiler, or is not on Linux"
)


class Matrix:
    """A matrix as a BLAS is given it: rows or columns in memory, transposed or not, with room between them."""

    def __init__(self, values: np.ndarray, order: int, trans: int, room: int) -> None:
        stored = values.T if (order == COL_MAJOR) != (trans == TRANS) else values
        self.memory = np.full((stored.shape[0], stored.shape[1] + room), PADDING, np.float32)
        self.memory[:, : stored.shape[1]] = stored
        self.stored = self.memory[:, : stored.shape[1]]
        self.leading = max(1, self.memory.shape[1])

    @property
    def pointer(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.memory.ctypes.data)


def sgemm(order: int, ta: int, tb: int, m: int, n: int, k: int, alpha: float, beta: float, room: int = 0) -> None:
    """Multiply random matrices, and compare: the product, and the memory around it."""
    random = np.random.default_rng(m + 100 * n + 10_000 * k)
    a, b, c = (random.standard_normal(shape) for shape in ((m, k), (k, n), (m, n)))
    expected = alpha * (a @ b) + beta * c
    if beta == 0:
        c[:] = np.nan  # as memory that nothing was written to may be
    A, B, C = Matrix(a, order, ta, room), Matrix(b, order, tb, room), Matrix(c, order, NO_TRANS, room)
    f = ctypes.c_float
    function = ctypes.CDLL(None).cblas_sgemm  # what MLX finds
    function(
        order, ta, tb, m, n, k, f(alpha), A.pointer, A.leading, B.pointer, B.leading, f(beta), C.pointer, C.leading
    )
    # Standard normal numbers: sums of about sqrt(k), rounded at each step.
    error = 1e-6 * (1 + abs(alpha)) * (1 + k**0.5)
    np.testing.assert_allclose(C.stored, expected if order == ROW_MAJOR else expected.T, rtol=1e-6, atol=error)
    assert (C.memory[:, C.stored.shape[1] :] == PADDING).all()


@pytest.mark.parametrize("order", [ROW_MAJOR, COL_MAJOR])
@pytest.mark.parametrize(("ta", "tb"), TRANSPOSITIONS)
def test_every_layout_and_size_gives_numpys_product(order: int, ta: int, tb: int) -> None:
    for m, n, k in itertools.product(SIZES, repeat=3):
        sgemm(order, ta, tb, m, n, k, 1.0, 0.0)
        sgemm(order, ta, tb, m, n, k, -0.5, 0.75, room=3)


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (0.0, 2.0), (1.0, 1.0), (3.0, -1.0)])
def test_every_alpha_and_beta(alpha: float, beta: float) -> None:
    for m, n in ((1, 20), (20, 1), (1, 1), (3, 20), (20, 3), (20, 20)):
        for ta, tb in TRANSPOSITIONS:
            sgemm(ROW_MAJOR, ta, tb, m, n, 9, alpha, beta, room=1)


@pytest.mark.parametrize("m", [2, 3, 4, 5, 16, 31, 32, 33, 64, 65, 128, 129])
def test_some_rows_times_a_matrix_whose_size_is_no_multiple_of_anything(m: int) -> None:
    for n, k in ((1, 7), (3, 16), (4, 17), (6, 64), (9, 1024), (50, 1025), (7, 4096), (13, 4113)):
        for alpha, beta in ((1.0, 0.0), (-0.5, 0.75)):
            sgemm(ROW_MAJOR, NO_TRANS, TRANS, m, n, k, alpha, beta, room=3)


@pytest.mark.parametrize("m", [2, 3, 4, 5, 16, 31, 32, 33, 64, 65])
def test_some_rows_times_a_matrix_that_lies_as_in_and_out(m: int) -> None:
    for n, k in ((1, 7), (3, 64), (16, 65), (17, 128), (63, 63), (64, 127), (65, 129), (100, 200), (130, 1025)):
        for alpha, beta in ((1.0, 0.0), (-0.5, 0.75)):
            sgemm(ROW_MAJOR, NO_TRANS, NO_TRANS, m, n, k, alpha, beta, room=3)


@pytest.mark.parametrize("width", [15, 16, 48, 64, 80, 128, 144])
@pytest.mark.parametrize("tb", [NO_TRANS, TRANS])
def test_one_row_times_the_values_or_keys_of_a_head(width: int, tb: int) -> None:
    """And one column: MLX swaps the two where it likes. A transposed row has room between its numbers, or none."""
    for positions, (alpha, beta), room in itertools.product((1, 63, 64, 65, 300), ((1.0, 0.0), (-0.5, 0.75)), (0, 3)):
        n, k = (width, positions) if tb == NO_TRANS else (positions, width)
        for ta, order in itertools.product((NO_TRANS, TRANS), (ROW_MAJOR, COL_MAJOR)):
            sgemm(order, ta, tb, 1, n, k, alpha, beta, room)
            sgemm(order, ta, tb, n, 1, k, alpha, beta, room)


def product(x: np.ndarray, w: np.ndarray, y: np.ndarray) -> np.ndarray:
    """0.3 x w + 0.7 y, where x, w and y may be slices of larger matrices, and w's columns its rows in memory."""
    result, f = y.copy(), ctypes.c_float
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, w, result)]
    leading = [max(array.strides) // array.itemsize for array in (x, w, result)]
    tb = TRANS if w.strides[0] < w.strides[1] else NO_TRANS
    (m, k), n, function = x.shape, w.shape[1], ctypes.CDLL(None).cblas_sgemm
    (a, b, c), (lda, ldb, ldc) = pointers, leading
    function(ROW_MAJOR, NO_TRANS, tb, m, n, k, f(0.3), a, lda, b, ldb, f(0.7), c, ldc)
    return result


@pytest.mark.parametrize("k", [60, 200, 900, 4500])
@pytest.mark.parametrize("tb", [NO_TRANS, TRANS])
def test_neither_other_rows_nor_other_columns_change_a_sum(k: int, tb: int) -> None:
    random = np.random.default_rng(k)
    x, w, y = (random.standard_normal(shape).astype(np.float32) for shape in ((16, k), (k, 700), (16, 700)))
    w = w if tb == NO_TRANS else np.asfortranarray(w)
    whole = product(x, w, y)  # the largest is shared between threads
    assert (whole != y).all()
    for first, last in ((0, 2), (2, 5), (11, 16)):
        np.testing.assert_array_equal(product(x[first:last], w, y[first:last]), whole[first:last])
    for first, last in ((0, 112), (112, 163), (690, 700), (3, 5)):
        np.testing.assert_array_equal(product(x, w[:, first:last], y[:, first:last]), whole[:, first:last])
    if tb == TRANS and k == 60:  # as one row times the keys of a head
        np.testing.assert_array_equal(product(x[5:6], w, y[5:6]), whole[5:6])


@pytest.mark.parametrize(("m", "n"), [(1, 3000), (3000, 1), (4, 3000), (3000, 4), (300, 300)])
def test_matrices_larger_than_a_block(m: int, n: int) -> None:
    for ta, tb in TRANSPOSITIONS:
        sgemm(ROW_MAJOR, ta, tb, m, n, 129, 1.0, 0.0)


def test_products_of_several_threads_at_once() -> None:
    """Each of them is large enough to be shared between the library's own threads."""
    shapes = [(m, n, k) for m in (1, 8, 100) for n, k in ((1200, 500), (300, 1800))]

    def multiply(shape: tuple[int, int, int]) -> None:
        for _ in range(2):
            sgemm(ROW_MAJOR, NO_TRANS, TRANS, *shape, 1.0, 0.0)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(multiply, shapes * 2))


ONE_ROW = """
import json, zlib
import mlxgen
import mlx.core as mx
normal = lambda *shape: mx.random.normal(shape, key=mx.random.key(7))
print(json.dumps([zlib.crc32(memoryview(normal(1, k) @ normal(k, 768))) for k in (768, 3072)]))
"""


def test_one_row_is_the_same_to_the_bit_whatever_the_number_of_threads() -> None:
    answers = [
        fresh(ONE_ROW, cwd=Path(os.sep), env={**os.environ, "OPENBLAS_NUM_THREADS": number})
        for number in ("1", "2", "3")
    ]
    assert answers[0] == answers[1] == answers[2]


def test_mlx_multiplies_one_row_as_it_multiplies_many() -> None:
    import mlx.core as mx

    x, w, bias = (mx.random.normal(shape, key=mx.random.key(3)) for shape in ((8, 96), (200, 96), (200,)))
    expected = np.array(x, np.float64) @ np.array(w, np.float64).T + np.array(bias, np.float64)
    for rows in (1, 2, 4, 5, 8):
        for weight in (w.T, mx.contiguous(w.T)):
            np.testing.assert_allclose(np.array(mx.addmm(bias, x[:rows], weight)), expected[:rows], atol=1e-4)


LOADED = """
import ctypes, json, sys
import mlxgen
from mlxgen import blas
from mlxgen.errors import OptionError
{change}
try: library = blas.loaded_library()
except OptionError as error: library = str(error)
import mlx.core as mx
own = lambda where: ctypes.cast(where.cblas_sgemm, ctypes.c_void_p).value
compiled = next(line.split()[-1] for line in open("/proc/self/maps") if "_sgemm." in line) if blas._few_rows else None
product = (mx.array([[1.0, 2.0]]) @ mx.array([[3.0], [4.0]])).item()
first = compiled is not None and own(ctypes.CDLL(compiled)) == own(ctypes.CDLL(None))
print(json.dumps([library, blas.is_quick_for_a_row(), first, product]))
"""


def loaded(change: str = "", **env: str) -> list[object]:
    """[library, is_quick_for_a_row, whether MLX finds the compiled sgemm first, a product] in a new process."""
    others = {name: value for name, value in os.environ.items() if name != "MLXGEN_BLAS"}
    # Elsewhere than in the sources, which have no compiled library unless they are installed for development.
    answer: list[object] = fresh(LOADED.format(change=change), cwd=Path(os.sep), env=others | env)
    return answer


def test_mlx_finds_the_compiled_one_first() -> None:
    library, quick, first, product = loaded()
    assert library and quick and first and product == 11


def test_without_it_mlx_multiplies_with_openblas_itself() -> None:
    library, quick, first, product = loaded("blas.EXTENSION_SUFFIXES = []")
    assert library == loaded()[0] and not quick and not first and product == 11


def test_an_openblas_whose_names_have_a_prefix_works_with_it_and_is_refused_without() -> None:
    found = (Path(folder, mlxgen.blas.WHEEL_BLAS["aarch64"]) for folder in sys.path)
    prefixed = next((str(file) for file in found if file.is_file()), None)
    if prefixed is None:
        pytest.skip("needs scipy-openblas32")
    assert loaded(MLXGEN_BLAS=prefixed) == [prefixed, True, True, 11]
    refused = loaded("blas.EXTENSION_SUFFIXES = []", MLXGEN_BLAS=prefixed)
    assert "C compiler" in str(refused[0]) and refused[1:] == [False, False, 11]
