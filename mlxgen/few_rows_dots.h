/* Dot products of up to TILE rows of x with up to TILE rows of w, and of one row with any number. few_rows.c includes
   this once for each kind of vector register: DOTS names the functions, TARGET has the instructions for them, LANES is
   how many numbers a register holds. SUMS is how many rows of w have their sums in registers at a time: 2 where there
   are 16 registers, 4 where 32. */

#define JOINED_(name, part) name##part
#define JOINED(name, part) JOINED_(name, part)
#define VECTOR JOINED(DOTS, _vector)
#define DOTS_OF JOINED(DOTS, _of)
#define TOTAL_OF JOINED(DOTS, _total)
#define ROW JOINED(DOTS, _row)

typedef float VECTOR __attribute__((vector_size(4 * LANES)));

TARGET static inline __attribute__((always_inline)) float TOTAL_OF(VECTOR lanes)
{
    four four_lanes, total = {0};
    for (int l = 0; l < LANES; l += 4) {
        memcpy(&four_lanes, (float *)&lanes + l, sizeof four_lanes);
        total += four_lanes;
    }
    return (total[0] + total[1]) + (total[2] + total[3]);
}

/* rows and columns are constants where this is used, so that all sums stay in registers. */
TARGET static inline __attribute__((always_inline)) void DOTS_OF(int rows, int columns, int size, const float *x,
                                                                 size_t x_row, const float *w, size_t w_row,
                                                                 const float *next, float sums[TILE][TILE])
{
    VECTOR lanes[TILE][TILE] = {0};
    int i = 0;
    for (; i + LANES <= size; i += LANES) {
        VECTOR from_x, from_w[TILE];
        __builtin_prefetch(next + i, 0, 2); /* into the second cache: the first holds this tile */
        for (int c = 0; c < columns; c++)
            memcpy(&from_w[c], w + c * w_row + i, sizeof(VECTOR));
        for (int r = 0; r < rows; r++) {
            memcpy(&from_x, x + r * x_row + i, sizeof(VECTOR));
            for (int c = 0; c < columns; c++)
                lanes[r][c] += from_x * from_w[c];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) {
            sums[r][c] = TOTAL_OF(lanes[r][c]);
            for (int rest = i; rest < size; rest++)
                sums[r][c] += x[r * x_row + rest] * w[c * w_row + rest];
        }
}

TARGET static void DOTS(int rows, int columns, int size, const float *x, size_t x_row, const float *w, size_t w_row,
                        const float *next, float sums[TILE][TILE])
{
    if (rows == TILE && columns == TILE)
        for (int c = 0; c < TILE; c += SUMS)
            DOTS_OF(TILE, SUMS, size, x, x_row, w + c * w_row, w_row, next, (float(*)[TILE])&sums[0][c]);
    else if (columns == TILE)
        for (int r = 0; r < rows; r++)
            DOTS_OF(1, TILE, size, x + r * x_row, x_row, w, w_row, next, sums + r);
    else
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++) {
                float one[TILE][TILE];
                DOTS_OF(1, 1, size, x + r * x_row, x_row, w + c * w_row, w_row, next, one);
                sums[r][c] = one[0][0];
            }
}

/* y = alpha x w^T + beta y for one row x. With beta 0, y may hold anything, even NaN. */
TARGET static void ROW(int out, int in, float alpha, const float *x, const float *w, size_t w_row, float beta, float *y)
{
    for (int o = 0; o < out; o++, w += w_row) {
        VECTOR from_x, from_w, lanes = {0};
        int i = 0;
        for (; i + LANES <= in; i += LANES) {
            memcpy(&from_x, x + i, sizeof from_x);
            memcpy(&from_w, w + i, sizeof from_w);
            lanes += from_x * from_w;
        }
        float sum = TOTAL_OF(lanes);
        for (; i < in; i++)
            sum += x[i] * w[i];
        y[o] = alpha * sum + (beta == 0 ? 0 : beta * y[o]);
    }
}

#undef JOINED_
#undef JOINED
#undef VECTOR
#undef DOTS_OF
#undef TOTAL_OF
#undef ROW
#undef DOTS
