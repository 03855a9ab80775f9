/* The operations of MLX's CPU backend that mlxgen computes in one pass instead of many. See operations.h. */

#include "operations.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOG2_E 1.44269504088896340736f

enum {
    LANES = 16,      /* parts of a sum: see row_functions.h */
    BLOCK = 1024,    /* numbers that are added up before the sum goes to a larger one */
    QUERIES = 128,   /* queries of a head whose scores are computed at a time: they stay in the second cache */
    AT_ONCE = 65536, /* numbers that a thread takes at a time */
    LEAST = 512 * 1024, /* multiplications from which attention is shared between threads */
    LINE = 16        /* numbers that are fetched from memory together */
};

typedef float parts __attribute__((vector_size(4 * LANES)));
typedef float loose_parts __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* that begin anywhere */

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

/* What the rows of an operation have in common. */
typedef struct {
    const operand *in;
    float *out;
    const float *numbers;
    int rows, width, rows_of_a_block;
} rows_job;

static void for_rows(void (*work)(const void *, int), const operand *in, float *out, const float *numbers)
{
    rows_job job = {in, out, numbers, rows_of(in), width_of(in), 1};
    job.rows_of_a_block = AT_ONCE / (job.width + 1) + 1;
    if (job.rows && job.width)
        mlxgen_in_blocks(work, &job, (job.rows - 1) / job.rows_of_a_block + 1);
}

#define FOR_ROWS_OF_BLOCK(job, row, block)                                                                         \
    for (int row = block * job->rows_of_a_block; row < job->rows && row < (block + 1) * job->rows_of_a_block; row++)

static void gate_block(const void *data, int block)
{
    const rows_job *job = data;
    FOR_ROWS_OF_BLOCK(job, row, block)
        CHOSEN(gate)(job->width, row_of(job->in, row), job->out + (size_t)row * job->width, job->numbers[0], job->numbers[1]);
}

void mlxgen_gate(const operand *in, float *out, const float *numbers) { for_rows(gate_block, in, out, numbers); }

static void gelu_block(const void *data, int block)
{
    const rows_job *job = data;
    FOR_ROWS_OF_BLOCK(job, row, block)
        CHOSEN(gelu)(job->width, row_of(job->in, row), job->out + (size_t)row * job->width);
}

void mlxgen_gelu(const operand *in, float *out, const float *numbers) { for_rows(gelu_block, in, out, numbers); }

static void layer_norm_block(const void *data, int block)
{
    const rows_job *job = data;
    FOR_ROWS_OF_BLOCK(job, row, block)
        CHOSEN(layer_norm)(job->width, row_of(job->in, row), job->in[1].data, job->in[2].data, job->out + (size_t)row * job->width,
                           job->numbers[0]);
}

void mlxgen_layer_norm(const operand *in, float *out, const float *numbers) { for_rows(layer_norm_block, in, out, numbers); }

static void softmax_block(const void *data, int block)
{
    const rows_job *job = data;
    FOR_ROWS_OF_BLOCK(job, row, block)
        CHOSEN(softmax)(job->width, row_of(job->in, row), job->out + (size_t)row * job->width);
}

void mlxgen_softmax(const operand *in, float *out, const float *numbers) { for_rows(softmax_block, in, out, numbers); }

static void log_total_block(const void *data, int block)
{
    const rows_job *job = data;
    FOR_ROWS_OF_BLOCK(job, row, block)
        job->out[row] = CHOSEN(log_total)(job->width, row_of(job->in, row));
}

void mlxgen_log_total(const operand *in, float *out, const float *numbers) { for_rows(log_total_block, in, out, numbers); }

/* Attention: q [B, H, L, D], k and v [B, H, S, D], and perhaps a mask [B, H, L, S] of bools -> [B, L, H, D]. */
typedef struct {
    const operand *q, *k, *v, *mask;
    float *out;
    float scale;
    int causal, heads; /* heads of a block */
} attention_job;

static void fetch(const float *rows, int n, int width, int64_t stride)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < width; j += LINE)
            __builtin_prefetch(rows + i * stride + j, 0, 2);
}

/* Some queries, from the one at `start` on, of one head of one row. */
static void attend(const attention_job *job, int b, int h, int start, int L, float *scores)
{
    const operand *q = job->q, *k = job->k, *v = job->v, *mask = job->mask;
    int H = q->shape[1], all = q->shape[2], D = q->shape[3], S = k->shape[2];
    int read = job->causal ? S - all + start + L : S; /* the keys after them are of later positions */
    int width = (S + LANES - 1) / LANES * LANES;
    const float *queries = (const float *)q->data + b * q->strides[0] + h * q->strides[1] + start * q->strides[2];
    const float *keys = (const float *)k->data + b * k->strides[0] + h * k->strides[1];
    const float *values = (const float *)v->data + b * v->strides[0] + h * v->strides[1];
    float *out = job->out + (((size_t)b * all + start) * H + h) * D;
    product to_scores = {0, 1, L, read, D, job->scale, queries, q->strides[2], keys, k->strides[2], 0, scores, width};
    product to_out = {0, 0, L, D, read, 1, scores, width, values, v->strides[2], 0, out, H * D};
    if (L == 1)
        fetch(values, read, D, v->strides[2]);
    mlxgen_multiply(&to_scores);
    for (int l = 0; l < L; l++) {
        float *row = scores + (size_t)l * width;
        int last = job->causal ? S - all + start + l + 1 : S;
        if (mask) {
            const uint8_t *open = (const uint8_t *)mask->data + b * mask->strides[0] + h * mask->strides[1] + (start + l) * mask->strides[2];
            int n_open = 0;
            for (int s = 0; s < S; s++) {
                n_open += open[s * mask->strides[3]];
                row[s] = open[s * mask->strides[3]] ? row[s] : -INFINITY;
            }
            if (n_open == 0) { /* whoever sees only -infinity otherwise has overflowed, and becomes NaN */
                memset(row, 0, width * sizeof(float));
                continue;
            }
        }
        for (int s = last; s < width; s++)
            row[s] = -INFINITY;
        CHOSEN(softmax)(width, row, row);
    }
    if (L == 1 && h + 1 < H)
        fetch(keys + k->strides[1], read, D, k->strides[2]);
    mlxgen_multiply(&to_out);
}

static void attention_block(const void *data, int block)
{
    const attention_job *job = data;
    int H = job->q->shape[1], L = job->q->shape[2], S = job->k->shape[2], some = L < QUERIES ? L : QUERIES;
    float *scores = malloc(sizeof(float) * some * (S + LANES));
    for (int at = block * job->heads; at < (block + 1) * job->heads && at < job->q->shape[0] * H; at++)
        for (int start = 0; start < L; start += some)
            attend(job, at / H, at % H, start, L - start < some ? L - start : some, scores);
    free(scores);
}

void mlxgen_attention(const operand *in, float *out, const float *numbers)
{
    attention_job job = {in, in + 1, in + 2, numbers[2] ? in + 3 : NULL, out, numbers[0], numbers[1] != 0, 1};
    int heads = in->shape[0] * in->shape[1];
    double size = 2.0 * heads * in->shape[2] * in[1].shape[2] * in->shape[3];
    job.heads = size < LEAST ? heads : heads / 32 + 1;
    if (size > 0)
        mlxgen_in_blocks(attention_block, &job, (heads - 1) / job.heads + 1);
}
