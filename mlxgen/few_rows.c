/* The product of some rows with a matrix that is read from memory once.

   OpenBLAS's sgemm first copies the matrix into an order of its own. That pays for many rows; for the few of a batch's
   decode step, it takes longer than the product. Here, 4 rows at a time are multiplied with 4 rows of a matrix
   [out, in] (few_rows_dots.h) or with a few registers of columns of a matrix [in, out] (few_rows_columns.h), so that
   all sums stay in registers. One row is for matrices of few numbers in a row: they are read as they come. */

#include "few_rows.h"

#include <stddef.h>
#include <string.h>

enum {
    TILE = 4,    /* rows of either side that are multiplied at a time */
    PART = 1024, /* numbers of them at a time: a part stays in the innermost cache */
    DEPTH = 64,  /* rows of a matrix [in, out] at a time: they, and those fetched ahead, stay in the second cache */
    LINE = 16    /* numbers that are fetched from memory together */
};

typedef float four __attribute__((vector_size(16)));
typedef void dots_t(int, int, int, const float *, size_t, const float *, size_t, const float *, float[TILE][TILE]);
typedef void row_t(int, int, float, const float *, const float *, size_t, float, float *);
typedef void columns_t(int, int, int, float, const float *, size_t, const float *, size_t, float, float *, size_t);

#if defined(__x86_64__)
#define DOTS avx512_dots
#define COLUMNS avx512_columns
#define TARGET __attribute__((target("avx512f")))
#define LANES 16
#define SUMS 4
#include "few_rows_dots.h"
#include "few_rows_columns.h"
#define DOTS avx2_dots
#define COLUMNS avx2_columns
#define TARGET __attribute__((target("avx2,fma")))
#define LANES 8
#define SUMS 2
#include "few_rows_dots.h"
#include "few_rows_columns.h"
#elif defined(__aarch64__)
#define DOTS neon_dots
#define COLUMNS neon_columns
#define TARGET
#define LANES 4
#define SUMS 4
#include "few_rows_dots.h"
#include "few_rows_columns.h"
#endif

static dots_t *dots;
static row_t *row;
static columns_t *columns;

int most_few_rows(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) {
        dots = avx512_dots, row = avx512_dots_row, columns = avx512_columns;
        return 64;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        dots = avx2_dots, row = avx2_dots_row, columns = avx2_columns;
        return 32;
    }
#elif defined(__aarch64__)
    dots = neon_dots, row = neon_dots_row, columns = neon_columns;
    return 16;
#endif
    return 0;
}

void multiply_few_rows_out_in(int rows, int out, int in, float alpha, const float *x, int x_row, const float *w,
                              int w_row, float beta, float *y, int y_row)
{
    if (rows == 1) {
        row(out, in, alpha, x, w, w_row, beta, y);
        return;
    }
    for (int start = 0; start < in; start += PART) {
        int size = in - start < PART ? in - start : PART;
        for (int o = 0; o < out; o += TILE)
            for (int i = 0; i < rows; i += TILE) {
                int n = rows - i < TILE ? rows - i : TILE, width = out - o < TILE ? out - o : TILE;
                const float *tile = w + (size_t)o * w_row + start, *next = tile;
                float sums[TILE][TILE];
                if (o + 2 * TILE <= out && i < TILE * TILE) /* each of 4 passes has a row of the next tile fetched */
                    next += (size_t)(TILE + i / TILE) * w_row;
                dots(n, width, size, x + (size_t)i * x_row + start, x_row, tile, w_row, next, sums);
                for (int r = 0; r < n; r++)
                    for (int c = 0; c < width; c++) {
                        float *to = y + (size_t)(i + r) * y_row + o + c;
                        if (start == 0)
                            *to = beta == 0 ? 0 : beta * *to; /* with beta 0, y may hold anything, even NaN */
                        *to += alpha * sums[r][c];
                    }
            }
    }
}

void multiply_few_rows_in_out(int rows, int out, int in, float alpha, const float *x, int x_row, const float *w,
                              int w_row, float beta, float *y, int y_row)
{
    columns(rows, out, in, alpha, x, x_row, w, w_row, beta, y, y_row);
}
