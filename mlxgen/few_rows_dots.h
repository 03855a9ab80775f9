/* Some rows of x times w^T, where w lies as [out, in]. few_rows.c includes this once for each kind of vector register:
   DOTS names the function, TARGET has the instructions for it, LANES is how many numbers a register holds, WIDTH how
   many rows of w are multiplied at a time with TILE rows of x: TILE * WIDTH sums, WIDTH parts of w and one of x fit in
   the registers. One sum has the same order whatever the number of rows and of columns. */

#define JOINED_(name, part) name##part
#define JOINED(name, part) JOINED_(name, part)
#define VECTOR JOINED(DOTS, _vector)
#define LOOSE JOINED(DOTS, _loose)
#define FOUR_OF JOINED(DOTS, _four)
#define TOTALS_OF JOINED(DOTS, _totals)
#define TILE_OF JOINED(DOTS, _tile)
#define ROW_OF JOINED(DOTS, _row)
#define INLINE TARGET static inline __attribute__((always_inline))

typedef float VECTOR __attribute__((vector_size(4 * LANES)));
typedef float LOOSE __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* one that begins anywhere */

/* Four sums, which add up to that of a vector: (f[0] + f[2]) + (f[1] + f[3]), wherever this is used. */
INLINE four FOUR_OF(VECTOR vector)
{
#if LANES == 4
    return vector;
#else
    eight halves[LANES / 8];
    four quarters[2];
    memcpy(halves, &vector, sizeof halves);
#if LANES == 16
    halves[0] += halves[1];
#endif
    memcpy(quarters, halves, sizeof quarters);
    return quarters[0] + quarters[1];
#endif
}

/* The sum of each of four vectors, in a fraction of the time of four sums one after the other. */
INLINE four TOTALS_OF(const VECTOR vectors[4])
{
    four a = FOUR_OF(vectors[0]), b = FOUR_OF(vectors[1]), c = FOUR_OF(vectors[2]), d = FOUR_OF(vectors[3]);
    four ab = (four){a[0], b[0], a[1], b[1]} + (four){a[2], b[2], a[3], b[3]}; /* each of them one instruction */
    four cd = (four){c[0], d[0], c[1], d[1]} + (four){c[2], d[2], c[3], d[3]};
    return (four){ab[0], ab[1], cd[0], cd[1]} + (four){ab[2], ab[3], cd[2], cd[3]};
}

/* y = alpha x w^T + beta y for up to TILE rows of x and WIDTH of w. Meanwhile, `ahead` rows of the next tile are
   fetched. rows and columns are constants where this is used, so that all sums stay in registers. fmaf says what is
   rounded once: a compiler may round the same expression in either of two ways, even in the same loop. */
INLINE void TILE_OF(int rows, int columns, int size, float alpha, const float *x, size_t x_row, const float *w,
                    size_t w_row, const float *next, int ahead, float beta, float *y, size_t y_row)
{
    VECTOR lanes[TILE * WIDTH] = {0};
    float sums[TILE * WIDTH];
    int i = 0;
    for (; i + LANES <= size; i += LANES) {
        VECTOR from_x, from_w[WIDTH];
        for (int a = 0; a < ahead; a++)
            __builtin_prefetch(next + a * w_row + i, 0, 2); /* into the second cache: the first holds this tile */
        for (int c = 0; c < columns; c++)
            from_w[c] = *(const LOOSE *)(w + c * w_row + i);
        for (int r = 0; r < rows; r++) {
            from_x = *(const LOOSE *)(x + r * x_row + i);
            for (int c = 0; c < columns; c++)
                lanes[r * columns + c] += from_x * from_w[c];
        }
    }
    for (int j = 0; j < rows * columns; j += 4) {
        four totals = TOTALS_OF(lanes + j);
        memcpy(sums + j, &totals, sizeof totals);
    }
    for (; i < size; i++)
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++)
                sums[r * columns + c] = __builtin_fmaf(x[r * x_row + i], w[c * w_row + i], sums[r * columns + c]);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) {
            float *to = y + r * y_row + c; /* with beta 0, it may hold anything, even NaN */
            *to = __builtin_fmaf(alpha, sums[r * columns + c], beta == 0 ? 0 : beta * *to);
        }
}

/* The same for one row and all of w. Its rows are read one after the other: keys often come from a cache, in order. */
INLINE void ROW_OF(int out, int size, float alpha, const float *x, const float *w, size_t w_row, float beta, float *y)
{
    for (int o = 0; o < out; o++, w += w_row) {
        VECTOR lanes = {0};
        int i = 0;
        for (; i + LANES <= size; i += LANES)
            lanes += *(const LOOSE *)(x + i) * *(const LOOSE *)(w + i);
        four parts = FOUR_OF(lanes);
        float sum = (parts[0] + parts[2]) + (parts[1] + parts[3]);
        for (; i < size; i++)
            sum = __builtin_fmaf(x[i], w[i], sum);
        y[o] = __builtin_fmaf(alpha, sum, beta == 0 ? 0 : beta * y[o]);
    }
}

TARGET static void DOTS(int rows, int out, int in, float alpha, const float *x, size_t x_row, const float *w,
                        size_t w_row, float beta, float *y, size_t y_row)
{
    if (rows == 1 && in <= PART) {
        ROW_OF(out, in, alpha, x, w, w_row, beta, y);
        return;
    }
    int passes = rows / TILE + rows % TILE, each = (WIDTH + passes - 1) / passes; /* rows of w fetched in each pass */
    for (int start = 0; start < in; start += PART, beta = 1) {
        int size = in - start < PART ? in - start : PART;
        for (int o = 0, width; o < out; o += width) {
            const float *tile = w + o * w_row + start;
            width = out - o < WIDTH ? 1 : WIDTH;
            for (int i = 0, n, fetched = 0; i < rows; i += n, fetched += each) {
                const float *from = x + i * x_row + start, *next = tile;
                float *to = y + i * y_row + o;
                int ahead = 0;
                if (o + 2 * WIDTH <= out && fetched < WIDTH)
                    next += (WIDTH + fetched) * w_row, ahead = each;
                n = rows - i < TILE ? 1 : TILE;
                if (n == TILE && width == WIDTH)
                    TILE_OF(TILE, WIDTH, size, alpha, from, x_row, tile, w_row, next, ahead, beta, to, y_row);
                else if (n == TILE)
                    TILE_OF(TILE, 1, size, alpha, from, x_row, tile, w_row, next, ahead, beta, to, y_row);
                else if (width == WIDTH)
                    TILE_OF(1, WIDTH, size, alpha, from, x_row, tile, w_row, next, ahead, beta, to, y_row);
                else
                    TILE_OF(1, 1, size, alpha, from, x_row, tile, w_row, next, ahead, beta, to, y_row);
            }
        }
    }
}

#undef JOINED_
#undef JOINED
#undef VECTOR
#undef LOOSE
#undef FOUR_OF
#undef TOTALS_OF
#undef TILE_OF
#undef ROW_OF
#undef INLINE
#undef DOTS
#undef WIDTH
