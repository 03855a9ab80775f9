/* Some rows of x times w, where w lies as [in, out]. few_rows.c includes this once for each kind of vector register:
   COLUMNS names the function, TARGET has the instructions for it, LANES is how many numbers a register holds, SUMS how
   many registers of a row of w are multiplied at a time with TILE rows of x.

   A panel is DEPTH rows of so many columns of w. It is copied while the first rows of x are multiplied with it, because
   the distance between the rows of w often lets them displace each other in a cache. The hardware does not foresee that
   a panel's next row is read, so the next part of w, as deep as a panel, is fetched ahead. One sum has the same order
   whatever the number of rows and of columns. */

#define JOINED_(name, part) name##part
#define JOINED(name, part) JOINED_(name, part)
#define VECTOR JOINED(COLUMNS, _vector)
#define COPY_OF JOINED(COLUMNS, _copy)
#define TILE_OF JOINED(COLUMNS, _tile)
#define ADD_OF JOINED(COLUMNS, _add)
#define PANEL_OF JOINED(COLUMNS, _panel)
#define INLINE TARGET static inline __attribute__((always_inline))

typedef float VECTOR __attribute__((vector_size(4 * LANES)));

/* The last columns of w, fewer than a register holds, in a panel filled up with zeros. */
INLINE void COPY_OF(int size, int width, const float *w, size_t w_row, float *panel)
{
    memset(panel, 0, size * sizeof(VECTOR));
    for (int i = 0; i < size; i++)
        for (int c = 0; c < width; c++)
            panel[i * LANES + c] = w[i * w_row + c];
}

/* For each row r of x, add up x[r][i] times row i of w. With `copy`, copy w there too, and fetch the rows that begin at
   w + ahead. rows and registers are constants where this is used, so that all sums stay in registers. */
INLINE void TILE_OF(int rows, int registers, int size, const float *const x[TILE], const float *w, size_t w_row,
                    float *copy, size_t ahead, VECTOR sums[TILE][SUMS])
{
    VECTOR lanes[TILE][SUMS] = {0};
    for (int i = 0; i < size; i++) {
        VECTOR from_w[SUMS];
        for (int c = 0; c < registers; c++) {
            const float *from = w + i * w_row + c * LANES;
            memcpy(&from_w[c], from, sizeof(VECTOR));
            if (copy) {
                if (c * LANES % LINE == 0)
                    __builtin_prefetch(from + ahead, 0, 2);
                memcpy(copy + (i * registers + c) * LANES, &from_w[c], sizeof(VECTOR));
            }
        }
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < registers; c++)
                lanes[r][c] += x[r][i] * from_w[c];
    }
    for (int r = 0; r < TILE; r++)
        for (int c = 0; c < SUMS; c++)
            sums[r][c] = lanes[r][c];
}

/* y += alpha sums, for up to a register of numbers. */
INLINE void ADD_OF(int numbers, float alpha, VECTOR sums, float *y)
{
    VECTOR old = {0};
    memcpy(&old, y, numbers * sizeof(float));
    old += alpha * sums;
    memcpy(y, &old, numbers * sizeof(float));
}

/* y += alpha x w for a panel of w; in the last one, `width` may be less than a register. */
INLINE void PANEL_OF(int registers, int rows, int width, int size, float alpha, const float *x, size_t x_row,
                     const float *w, size_t w_row, size_t ahead, float *y, size_t y_row)
{
    float copy[DEPTH * SUMS * LANES] __attribute__((aligned(64)));
    if (width < LANES)
        COPY_OF(size, width, w, w_row, copy);
    for (int i = 0; i < rows; i += TILE) {
        const float *tile[TILE];
        VECTOR sums[TILE][SUMS];
        for (int r = 0; r < TILE; r++) /* the last row stands in for those that are missing */
            tile[r] = x + (i + r < rows ? i + r : rows - 1) * x_row;
        if (rows == 1 && width >= LANES)
            TILE_OF(1, registers, size, tile, w, w_row, NULL, 0, sums);
        else if (i == 0 && width >= LANES)
            TILE_OF(TILE, registers, size, tile, w, w_row, copy, ahead, sums);
        else
            TILE_OF(TILE, registers, size, tile, copy, registers * LANES, NULL, 0, sums);
        for (int r = 0; r < TILE && i + r < rows; r++)
            for (int c = 0; c < registers; c++)
                if (width < LANES)
                    ADD_OF(width, alpha, sums[r][c], y + (i + r) * y_row);
                else
                    ADD_OF(LANES, alpha, sums[r][c], y + (i + r) * y_row + c * LANES);
    }
}

TARGET static void COLUMNS(int rows, int out, int in, float alpha, const float *x, size_t x_row, const float *w,
                           size_t w_row, float beta, float *y, size_t y_row)
{
    /* Not together with alpha: one expression of both may be rounded in either of two ways, even in the same loop. */
    for (int i = 0; i < rows && beta != 1; i++)
        for (int o = 0; o < out; o++)
            y[i * y_row + o] = beta == 0 ? 0 : beta * y[i * y_row + o]; /* with beta 0, y may hold anything, even NaN */
    for (int start = 0; start < in; start += DEPTH, x += DEPTH, w += DEPTH * w_row) {
        int size = in - start < DEPTH ? in - start : DEPTH, o = 0;
        size_t ahead = start + 2 * DEPTH <= in ? DEPTH * w_row : 0;
        for (; o + SUMS * LANES <= out; o += SUMS * LANES)
            PANEL_OF(SUMS, rows, SUMS * LANES, size, alpha, x, x_row, w + o, w_row, ahead, y + o, y_row);
        for (; o < out; o += LANES)
            PANEL_OF(1, rows, out - o < LANES ? out - o : LANES, size, alpha, x, x_row, w + o, w_row, ahead, y + o,
                     y_row);
    }
}

#undef JOINED_
#undef JOINED
#undef VECTOR
#undef COPY_OF
#undef TILE_OF
#undef ADD_OF
#undef PANEL_OF
#undef INLINE
#undef COLUMNS
#undef TARGET
#undef LANES
#undef SUMS
