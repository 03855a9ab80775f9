/* Dot products of up to TILE rows of x with up to TILE rows of w. few_rows.c includes this once for each kind of vector
   register: DOTS names the function, TARGET has the instructions for it, LANES is how many numbers a register holds.
   SUMS is how many rows of w have their sums in registers at a time: 2 where there are 16 registers, 4 where 32. */

#define JOINED_(name, part) name##part
#define JOINED(name, part) JOINED_(name, part)
#define VECTOR JOINED(DOTS, _vector)
#define DOTS_OF JOINED(DOTS, _of)

typedef float VECTOR __attribute__((vector_size(4 * LANES)));

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
            four four_lanes, total = {0};
            for (int l = 0; l < LANES; l += 4) {
                memcpy(&four_lanes, (float *)&lanes[r][c] + l, sizeof four_lanes);
                total += four_lanes;
            }
            sums[r][c] = (total[0] + total[1]) + (total[2] + total[3]);
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

#undef JOINED_
#undef JOINED
#undef VECTOR
#undef DOTS_OF
#undef DOTS
