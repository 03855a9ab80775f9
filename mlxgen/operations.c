/* The operations of MLX's CPU backend that mlxgen computes in one pass instead of many. See operations.h. */

#include "operations.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOG2_E 1.44269504088896340736f

enum {
    LANES = 16,         /* parts of a sum: see row_functions.h */
    BLOCK = 1024,       /* numbers that are added up before the sum goes to a larger one */
    AT_ONCE = 65536,    /* numbers of some rows that a thread takes at a time */
    HEAD_BLOCKS = 32,   /* at most about so many blocks of heads, however many heads there are */
    QUERIES = 128       /* queries of a head that are computed at a time, so that their scores stay in the L2 cache */
};

typedef float parts __attribute__((vector_size(4 * LANES)));
typedef float loose_parts __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* that begin anywhere */

static float *room_for(size_t n)
{
    float *room = malloc(n * sizeof(float));
    if (!room) { /* a few hundred kilobytes: nothing could go on without them */
        fputs("mlxgen: out of memory\n", stderr);
        abort();
    }
    return room;
}

/* Let x take the place of the first of a heap's k numbers, which is the least of them. */
static void sink(float *heap, int k, float x)
{
    int at = 0;
    for (int child; (child = 2 * at + 1) < k; at = child) {
        child += child + 1 < k && heap[child + 1] < heap[child];
        if (!(heap[child] < x))
            break;
        heap[at] = heap[child];
    }
    heap[at] = x;
}

#define JOINED_(name, part) name##part
#define JOINED(name, part) JOINED_(name, part)
#if defined(__x86_64__)
#define NAME(f) JOINED(avx512_, f)
#define TARGET __attribute__((target("avx512f")))
#include "row_functions.h"
#undef NAME
#undef TARGET
#define NAME(f) JOINED(avx2_, f)
#define TARGET __attribute__((target("avx2,fma")))
#include "row_functions.h"
#undef NAME
#undef TARGET
#define CHOSEN(f) (__builtin_cpu_supports("avx512f") ? avx512_##f : avx2_##f)
#else
#define NAME(f) JOINED(plain_, f)
#define TARGET
#include "row_functions.h"
#define CHOSEN(f) plain_##f
#endif

static int rows_of(const operand *x) /* how many rows: all axes but the last */
{
    int rows = 1;
    for (int axis = 0; axis < x->ndim - 1; axis++)
        rows *= x->shape[axis];
    return rows;
}

static int width_of(const operand *x)
{
    return x->ndim ? x->shape[x->ndim - 1] : 1;
}

/* Where a row begins. */
static const float *row_of(const operand *x, int row)
{
    int64_t at = 0;
    for (int axis = x->ndim - 2; axis >= 0; row /= x->shape[axis--])
        at += row % x->shape[axis] * x->strides[axis];
    return (const float *)x->data + at;
}

/* An operation that computes each row by itself. */
typedef struct {
    const operand *in;
    float *out;
    const float *numbers;
    int rows, width, rows_of_a_block;
} rows_job;

static void for_rows(void (*work)(const void *, int), const operand *in, float *out, const float *numbers)
{
    rows_job job = {in, out, numbers, rows_of(in), width_of(in), AT_ONCE / (width_of(in) + 1) + 1};
    if (job.rows && job.width)
        mlxgen_in_blocks(work, &job, (job.rows - 1) / job.rows_of_a_block + 1);
}

/* mlxgen_NAME: `call` for each row x of n numbers, whose result is `out_width` numbers at `out`. */
#define OPERATION_OF_ROWS(name, out_width, call)                                                    \
    static void name##_block(const void *data, int block)                                          \
    {                                                                                              \
        const rows_job *job = data;                                                                \
        const float *numbers = job->numbers;                                                       \
        int n = job->width, row = block * job->rows_of_a_block, end = row + job->rows_of_a_block; \
        for ((void)numbers; row < end && row < job->rows; row++) {                                 \
            const float *x = row_of(job->in, row);                                                 \
            float *out = job->out + (size_t)row * out_width;                                       \
            call;                                                                                  \
        }                                                                                          \
    }                                                                                              \
    void mlxgen_##name(const operand *in, float *out, const float *numbers)                        \
    {                                                                                              \
        for_rows(name##_block, in, out, numbers);                                                  \
    }

OPERATION_OF_ROWS(gate, n, CHOSEN(gate)(n, x, out, numbers[0], numbers[1]))
OPERATION_OF_ROWS(gelu, n, CHOSEN(gelu)(n, x, out))
OPERATION_OF_ROWS(layer_norm, n, CHOSEN(layer_norm)(n, x, job->in[1].data, job->in[2].data, out, numbers[0]))
OPERATION_OF_ROWS(exponentials, n, CHOSEN(below_highest)(n, x, out))
OPERATION_OF_ROWS(log_total, 1, *out = CHOSEN(log_total)(n, x))
OPERATION_OF_ROWS(kth_highest, 1, *out = CHOSEN(kth_highest)(n, x, numbers[0]))

/* Attention: q [B, H, L, D], k and v [B, H, S, D], and perhaps a mask [B, H, L, S] of bools -> [B, L, H, D]. */
typedef struct {
    const operand *q, *k, *v, *mask;
    float *out;
    float scale;
    int causal, heads_of_a_block;
} attention_job;

/* Where the vector of a row, a head and a position begins. */
static const float *vector_of(const operand *x, int b, int h, int position)
{
    return (const float *)x->data + b * x->strides[0] + h * x->strides[1] + position * x->strides[2];
}

/* Give the closed scores of a query -infinity. Returns whether any is open. */
static int close_some(float *scores, int S, const uint8_t *open, int64_t stride)
{
    int n_open = 0;
    for (int s = 0; s < S; s++) {
        n_open += open[s * stride];
        scores[s] = open[s * stride] ? scores[s] : -INFINITY;
    }
    return n_open > 0;
}

/* L queries, from the one at `start` on, of one head of one row. scores: room for those of all of them. */
static void attend(const attention_job *job, int b, int h, int start, int L, float *scores)
{
    const operand *q = job->q, *k = job->k, *v = job->v, *mask = job->mask;
    int H = q->shape[1], queries = q->shape[2], D = q->shape[3], S = k->shape[2];
    int first = S - queries + start, read = job->causal ? first + L : S; /* later keys are of later positions */
    int width = (S + LANES - 1) / LANES * LANES;
    float *out = job->out + (((size_t)b * queries + start) * H + h) * D;
    const float *from = vector_of(q, b, h, start), *keys = vector_of(k, b, h, 0), *values = vector_of(v, b, h, 0);
    mlxgen_multiply(&(product){0, 1, L, read, D, job->scale, from, q->strides[2],
                               keys, k->strides[2], 0, scores, width});
    for (int l = 0; l < L; l++) {
        float *row = scores + (size_t)l * width;
        for (int s = job->causal ? first + l + 1 : S; s < width; s++)
            row[s] = -INFINITY;
        if (mask && !close_some(row, S, (const uint8_t *)mask->data + b * mask->strides[0] + h * mask->strides[1] +
                                       (start + l) * mask->strides[2], mask->strides[3]))
            memset(row, 0, width * sizeof(float)); /* so that the result is 0; NaN would mean that scores overflowed */
        else
            CHOSEN(softmax)(width, row, row);
    }
    mlxgen_multiply(&(product){0, 0, L, D, read, 1, scores, width, values, v->strides[2], 0, out, H * D});
}

static void attention_block(const void *data, int block)
{
    const attention_job *job = data;
    int H = job->q->shape[1], L = job->q->shape[2], some = L < QUERIES ? L : QUERIES;
    int at = block * job->heads_of_a_block, end = at + job->heads_of_a_block;
    float *scores = room_for((size_t)some * (job->k->shape[2] + LANES));
    for (; at < end && at < job->q->shape[0] * H; at++)
        for (int start = 0; start < L; start += some)
            attend(job, at / H, at % H, start, L - start < some ? L - start : some, scores);
    free(scores);
}

/* numbers: the scale, whether each query reads only the keys up to its own, whether there is a mask. */
void mlxgen_attention(const operand *in, float *out, const float *numbers)
{
    int heads = in->shape[0] * in->shape[1];
    double size = 2.0 * heads * in->shape[2] * in[1].shape[2] * in->shape[3];
    int at_once = size < LEAST ? heads : heads / HEAD_BLOCKS + 1;
    attention_job job = {in, in + 1, in + 2, numbers[2] ? in + 3 : NULL, out, numbers[0], numbers[1] != 0, at_once};
    if (size > 0)
        mlxgen_in_blocks(attention_block, &job, (heads - 1) / at_once + 1);
}
