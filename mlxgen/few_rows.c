/* The product of some rows with a matrix that is read from memory once.

   OpenBLAS's sgemm first copies the matrix into an order of its own. That pays for many rows; for the few of a batch's
   decode step, it takes longer than the product. Here, 4 rows at a time are multiplied with a few rows of a matrix
   [out, in] (few_rows_dots.h) or with a few registers of columns of a matrix [in, out] (few_rows_columns.h), so that
   all sums stay in registers. A single row comes here only for narrow matrices (those of attention heads), which are
   read in order. */

#include "few_rows.h"

#include <stddef.h>
#include <string.h>

enum {
    TILE = 4,    /* rows of x that are multiplied at a time */
    PART = 4096, /* numbers of a matrix [out, in]'s rows at a time: so many of 64 rows of x stay in the second cache */
    DEPTH = 64,  /* rows of a matrix [in, out] at a time: they, and those fetched ahead, stay in the second cache */
    LINE = 16    /* numbers that are fetched from memory together */
};

typedef float four __attribute__((vector_size(16)));
typedef float eight __attribute__((vector_size(32)));
typedef void product_t(int, int, int, float, const float *, size_t, const float *, size_t, float, float *, size_t);

#if defined(__x86_64__)
#define DOTS avx512_dots
#define COLUMNS avx512_columns
#define TARGET __attribute__((target("avx512f")))
#define LANES 16
#define SUMS 4
#define WIDTH 6
#include "few_rows_dots.h"
#include "few_rows_columns.h"
#define DOTS avx2_dots
#define COLUMNS avx2_columns
#define TARGET __attribute__((target("avx2,fma")))
#define LANES 8
#define SUMS 2
#define WIDTH 3
#include "few_rows_dots.h"
#include "few_rows_columns.h"
#elif defined(__aarch64__)
#define DOTS neon_dots
#define COLUMNS neon_columns
#define TARGET
#define LANES 4
#define SUMS 4
#define WIDTH 6
#include "few_rows_dots.h"
#include "few_rows_columns.h"
#endif

static product_t *dots, *columns;

int most_few_rows(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) {
        dots = avx512_dots, columns = avx512_columns;
        return 64;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        dots = avx2_dots, columns = avx2_columns;
        return 32;
    }
#elif defined(__aarch64__)
    dots = neon_dots, columns = neon_columns;
    return 16;
#endif
    return 0;
}

void multiply_few_rows_out_in(int rows, int out, int in, float alpha, const float *x, int x_row, const float *w,
                              int w_row, float beta, float *y, int y_row)
{
    dots(rows, out, in, alpha, x, x_row, w, w_row, beta, y, y_row);
}

void multiply_few_rows_in_out(int rows, int out, int in, float alpha, const float *x, int x_row, const float *w,
                              int w_row, float beta, float *y, int y_row)
{
    columns(rows, out, in, alpha, x, x_row, w, w_row, beta, y, y_row);
}
