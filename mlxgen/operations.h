/* The operations that mlx_extension.cpp adds to MLX's CPU backend, and the functions of sgemm.c that they use. */

#include <stdint.h>

enum { LEAST = 512 * 1024 }; /* multiplications from which work is shared between threads */

/* An array as MLX holds it. strides: in elements. In an array of floats, the last axis is contiguous, and
   consecutive rows do not overlap. */
typedef struct {
    const void *data;
    int ndim;
    const int32_t *shape;
    const int64_t *strides;
} operand;

/* Compute `out`, which has no gaps, from arrays and the operation's numbers. */
typedef void operation_t(const operand *in, float *out, const float *numbers);

operation_t mlxgen_gate, mlxgen_gelu, mlxgen_layer_norm, mlxgen_exponentials, mlxgen_log_total, mlxgen_kth_highest,
    mlxgen_attention;

/* Call work(data, block) for all blocks, on as many threads as may share a product. */
void mlxgen_in_blocks(void (*work)(const void *, int), const void *data, int blocks);

/* C = alpha op(A) op(B) + beta C in rows, on this thread: C is [m, n], op(A) [m, k], op(B) [k, n]; at, bt: whether op
   transposes. */
typedef struct {
    int at, bt, m, n, k;
    float alpha;
    const float *a;
    int lda;
    const float *b;
    int ldb;
    float beta;
    float *c;
    int ldc;
} product;

void mlxgen_multiply(const product *p);
