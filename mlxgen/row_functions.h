/* Functions of one row of numbers. operations.c includes this once for each kind of vector register: NAME(f) is the
   name of f for that kind, TARGET has the instructions for it. The loops are plain; the compiler makes vectors of them.

   A sum is taken in LANES parts, so that it has the same order whatever the kind of register. */

#define INLINE TARGET static inline __attribute__((always_inline))

/* 2^t for t in [-126, 126] (Cody and Waite, 1980), as mlxgen/cpu_exp.py has it. */
INLINE float NAME(exp2)(float t)
{
    float rounded = t + 12582912.0f, f = t - (rounded - 12582912.0f), power = 0.001327646679310052f;
    int32_t bits, exponent;
    power = __builtin_fmaf(power, f, 0.009675541292994498f);
    power = __builtin_fmaf(power, f, 0.05550713289582651f);
    power = __builtin_fmaf(power, f, 0.24022119724872443f);
    power = __builtin_fmaf(power, f, 0.6931469670549113f);
    power = __builtin_fmaf(power, f, 1.0000000716543658f);
    memcpy(&exponent, &rounded, 4);
    memcpy(&bits, &power, 4);
    bits += (int32_t)((uint32_t)exponent << 23);
    memcpy(&power, &bits, 4);
    return power;
}

/* e^x, 0 below 1e-38. NaN stays NaN; exp2 alone would turn some NaNs into numbers. */
INLINE float NAME(exp)(float x)
{
    float t = x * LOG2_E, power = NAME(exp2)(t < -126 ? -126 : t);
    return t >= -126 ? power : t < -126 ? 0 : t;
}

/* x / (1 + e^-(linear x + cubic x^3)) */
TARGET static void NAME(gate)(int n, const float *x, float *out, float linear, float cubic)
{
    linear *= LOG2_E, cubic *= LOG2_E;
    for (int i = 0; i < n; i++) {
        float square = x[i] * x[i] < 1e30f ? x[i] * x[i] : 1e30f; /* infinity times a cubic of 0 would be NaN */
        float t = -x[i] * __builtin_fmaf(cubic, square, linear);
        float power = NAME(exp2)(t < -126 ? -126 : t > 126 ? 126 : t);
        out[i] = t > 126 ? 0 : x[i] / (1 + power);
    }
}

/* x times the normal distribution's cumulative probability, (1 + erf(x / sqrt 2)) / 2 (Abramowitz and Stegun, 7.1.26).
   The smaller of the two tails is computed, so that nothing cancels: the result has the right sign far out. */
TARGET static void NAME(gelu)(int n, const float *x, float *out)
{
    for (int i = 0; i < n; i++) {
        float t = 1 / __builtin_fmaf(0.3275911f * 0.70710678f, fabsf(x[i]), 1), beyond = 0.5f * 1.061405429f;
        beyond = __builtin_fmaf(beyond, t, 0.5f * -1.453152027f);
        beyond = __builtin_fmaf(beyond, t, 0.5f * 1.421413741f);
        beyond = __builtin_fmaf(beyond, t, 0.5f * -0.284496736f);
        beyond = __builtin_fmaf(beyond, t, 0.5f * 0.254829592f);
        beyond *= t * NAME(exp)(-0.5f * x[i] * x[i]);
        out[i] = x[i] * (x[i] < 0 ? beyond : 1 - beyond);
    }
}

INLINE float NAME(sum)(const parts *sums)
{
    float total = 0;
    for (int j = 0; j < LANES; j++)
        total += (*sums)[j];
    return total;
}

/* (x - mean) / sqrt(variance + epsilon) * weight + bias; NaN where the sum of the squares overflows. */
TARGET static void NAME(layer_norm)(int n, const float *x, const float *weight, const float *bias, float *out,
                                    float epsilon)
{
    parts sums = {0}, squares = {0};
    int i = 0, whole = n / LANES * LANES;
    for (; i < whole; i += LANES)
        sums += *(const loose_parts *)(x + i);
    for (; i < n; i++)
        sums[0] += x[i];
    float mean = NAME(sum)(&sums) / n;
    for (i = 0; i < whole; i += LANES) {
        parts distance = *(const loose_parts *)(x + i) - mean;
        squares += distance * distance;
    }
    for (; i < n; i++)
        squares[0] += (x[i] - mean) * (x[i] - mean);
    float variance = NAME(sum)(&squares) / n, scale = 1 / sqrtf(variance + epsilon);
    if (!(n * (variance + mean * mean) < INFINITY))
        scale = NAN;
    for (i = 0; i < n; i++)
        out[i] = __builtin_fmaf((x[i] - mean) * scale, weight[i], bias[i]);
}

TARGET static float NAME(highest)(int n, const float *x)
{
    float most[LANES];
    int i = 0;
    for (int j = 0; j < LANES; j++)
        most[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            most[j] = most[j] > x[i + j] ? most[j] : x[i + j];
    for (; i < n; i++)
        most[0] = most[0] > x[i] ? most[0] : x[i];
    for (int j = 1; j < LANES; j++)
        most[0] = most[0] > most[j] ? most[0] : most[j];
    return most[0];
}

/* out = e^(x - highest); out may be x itself, or NULL. Returns the sum. */
INLINE float NAME(exponentials)(int n, const float *x, float highest, float *out)
{
    parts sums = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        parts powers;
        for (int j = 0; j < LANES; j++)
            powers[j] = NAME(exp)(x[i + j] - highest);
        if (out)
            memcpy(out + i, &powers, sizeof powers);
        sums += powers;
    }
    for (; i < n; i++) {
        float power = NAME(exp)(x[i] - highest);
        if (out)
            out[i] = power;
        sums[0] += power;
    }
    return NAME(sum)(&sums);
}

/* out = e^x, divided by that of the highest x. */
TARGET static void NAME(below_highest)(int n, const float *x, float *out)
{
    NAME(exponentials)(n, x, NAME(highest)(n, x), out);
}

/* out = softmax(x); out may be x itself. In blocks, so that the sum of 50,000 numbers keeps its last digits. */
TARGET static void NAME(softmax)(int n, const float *x, float *out)
{
    float highest = NAME(highest)(n, x), total = 0;
    for (int i = 0; i < n; i += BLOCK)
        total += NAME(exponentials)(n - i < BLOCK ? n - i : BLOCK, x + i, highest, out + i);
    for (int i = 0; i < n; i++)
        out[i] /= total;
}

/* log(sum of e^x), in the same blocks. */
TARGET static float NAME(log_total)(int n, const float *x)
{
    float highest = NAME(highest)(n, x), total = 0;
    for (int i = 0; i < n; i += BLOCK)
        total += NAME(exponentials)(n - i < BLOCK ? n - i : BLOCK, x + i, highest, NULL);
    return highest + logf(total);
}

/* The k-th highest of x, for k from 1 to n: the least of a heap of the k highest. */
TARGET static float NAME(kth_highest)(int n, const float *x, int k)
{
    float *heap = room_for(k), least;
    for (int i = 0; i < k; i++)
        heap[i] = -INFINITY;
    for (int i = 0; i < n; i += LANES) {
        int end = i + LANES < n ? i + LANES : n;
        if (NAME(highest)(end - i, x + i) > heap[0])
            for (int j = i; j < end; j++)
                if (x[j] > heap[0])
                    sink(heap, k, x[j]);
    }
    least = heap[0];
    free(heap);
    return least;
}

#undef INLINE
