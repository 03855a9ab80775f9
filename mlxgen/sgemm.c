/* cblas_sgemm as MLX calls it, quick for few rows.

   OpenBLAS's sgemm copies a matrix before it multiplies, which for one row takes longer than the product itself. Its
   sgemv reads the matrix once. So products of one row or column, and of a few rows with a matrix [out, in], go to sgemv,
   all others to sgemm. mlxgen/blas.py loads this library before OpenBLAS and MLX, and hands it OpenBLAS's functions. */

#include <stddef.h>

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

typedef void gemm_t(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
typedef void gemv_t(int, int, int, int, float, const float *, int, const float *, int, float, float *, int);

static gemm_t *gemm;
static gemv_t *gemv;
static void (*set_threads)(int);
static int all_threads, row_threads, few; /* few: the most rows that gemv multiplies */

static const int BLOCK = 32768; /* numbers of the matrix that stay in the CPU's cache while every row is multiplied */

void mlxgen_use(gemm_t *m, gemv_t *v, void (*threads)(int), int all, int for_a_row, int rows)
{
    gemm = m, gemv = v, set_threads = threads, all_threads = all, row_threads = for_a_row, few = rows;
}

/* y[i] = alpha W x[i] + beta y[i] for each of `rows` vectors. W is [out, in], or [in, out] where trans is TRANS.
   x[i] has its numbers x_step apart and begins x_row after the one before it; y likewise. */
static void vectors(int rows, int out, int in, float alpha, const float *w, int trans, int ldw, const float *x, int x_row,
                    int x_step, float beta, float *y, int y_row, int y_step)
{
    int block = rows == 1 ? out : BLOCK / in + 1;
    if (beta == 0) { /* y may hold anything, and 0 times NaN is NaN */
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < out; j++)
                y[(size_t)i * y_row + (size_t)j * y_step] = 0;
        beta = 1;
    }
    set_threads(row_threads);
    for (int j = 0; j < out; j += block) {
        int size = out - j < block ? out - j : block;
        for (int i = 0; i < rows; i++)
            gemv(ROW_MAJOR, trans, trans == TRANS ? in : size, trans == TRANS ? size : in, alpha,
                 trans == TRANS ? w + j : w + (size_t)j * ldw, ldw, x + (size_t)i * x_row, x_step, beta,
                 y + (size_t)i * y_row + (size_t)j * y_step, y_step);
    }
    set_threads(all_threads);
}

static void row_major(int transa, int transb, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                      int ldb, float beta, float *c, int ldc)
{
    int at = transa != NO_TRANS, bt = transb != NO_TRANS, empty = m <= 0 || n <= 0 || k <= 0;
    if (!empty && m <= (bt ? few : 1))
        vectors(m, n, k, alpha, b, bt ? NO_TRANS : TRANS, ldb, a, at ? 1 : lda, at ? lda : 1, beta, c, ldc, 1);
    else if (!empty && n <= (at ? 1 : few))
        vectors(n, m, k, alpha, a, at ? TRANS : NO_TRANS, lda, b, bt ? ldb : 1, bt ? 1 : ldb, beta, c, 1, ldc);
    else
        gemm(ROW_MAJOR, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_sgemm(int order, int transa, int transb, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc)
{
    if (order == ROW_MAJOR)
        row_major(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    else /* C^T = B^T A^T, with the same numbers in the same places */
        row_major(transb, transa, n, m, k, alpha, b, ldb, a, lda, beta, c, ldc);
}
