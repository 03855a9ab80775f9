/* cblas_sgemm as MLX calls it: fast for few rows, and beside other busy processes.

   OpenBLAS's sgemm copies a matrix before it multiplies. For few rows that takes longer than the product itself. So one
   row goes to its sgemv, which reads the matrix where it lies. Several rows go to few_rows.c, and so does one row times
   the keys or values of an attention head. OpenBLAS's threads split a product into equal parts and wait for each other
   without sleeping, so one busy neighbour stalls them all. Here OpenBLAS computes on one thread, and the threads of
   this file take small blocks of a product, whoever is free the next one. If they are already working for one thread of
   the program, another one computes alone.

   mlxgen/blas.py loads this library before OpenBLAS and MLX, and passes it OpenBLAS's functions. */

#include "few_rows.h"
#include "operations.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };
enum {
    LONG = 256,          /* numbers of a row [out, in] from which on few_rows.c takes twice as many rows */
    FEW = 8,             /* up to this many rows go to sgemv where few_rows.c does not take them */
    CACHED = 32 * 1024,  /* numbers of a matrix that stay in a core's cache while each of the few rows reads them */
    HEAD = 128,          /* up to so wide are the keys and values of an attention head: see is_of_a_head */
    BLOCKS = 4,          /* blocks for each thread: enough to even out what a neighbour takes */
    WIDEST = 192,        /* rows or columns of a block whose copying no longer counts */
    SPINS = 2000         /* some 30 microseconds: the time between the products of a decode step */
};

typedef void gemm_t(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
typedef void gemv_t(int, int, int, int, float, const float *, int, const float *, int, float, float *, int);

static gemm_t *gemm;
static gemv_t *gemv;
static int n_threads = 1, most_rows; /* most_rows: up to this many go to few_rows.c */

static pthread_mutex_t user = PTHREAD_MUTEX_INITIALIZER; /* held by the thread whose work is shared */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static pthread_cond_t shared = PTHREAD_COND_INITIALIZER, left = PTHREAD_COND_INITIALIZER;
static void (*job)(const void *, int); /* work(data, block) for each of its blocks */
static const void *job_data;
static int n_blocks;
static atomic_int next, n_shared, n_helping; /* the next block; jobs so far; helpers that may be reading the job */

/* y[i] = alpha W x[i] + beta y[i] for each of `rows` vectors. W is [out, in], or [in, out] where trans is TRANS.
   The numbers of x[i] are x_step apart, and x[i + 1] begins x_row after x[i]; y likewise. */
static void vectors(int rows, int out, int in, float alpha, const float *w, int trans, int ldw, const float *x,
                    int x_row, int x_step, float beta, float *y, int y_row, int y_step)
{
    int some = rows == 1 ? out : CACHED / in + 1;
    if (beta == 0) { /* y may hold anything, and 0 times NaN is NaN */
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < out; j++)
                y[(size_t)i * y_row + (size_t)j * y_step] = 0;
        beta = 1;
    }
    for (int j = 0; j < out; j += some) {
        int size = out - j < some ? out - j : some;
        for (int i = 0; i < rows; i++)
            gemv(ROW_MAJOR, trans, trans == TRANS ? in : size, trans == TRANS ? size : in, alpha,
                 trans == TRANS ? w + j : w + (size_t)j * ldw, ldw, x + (size_t)i * x_row, x_step, beta,
                 y + (size_t)i * y_row + (size_t)j * y_step, y_step);
    }
}

static void multiply(const product *p)
{
    int at = p->at, bt = p->bt, empty = p->m <= 0 || p->n <= 0 || p->k <= 0;
    int most = bt && p->k >= LONG ? 2 * most_rows : most_rows;
    if (!empty && !at && bt && p->m > 1 && p->m <= most)
        multiply_few_rows_out_in(p->m, p->n, p->k, p->alpha, p->a, p->lda, p->b, p->ldb, p->beta, p->c, p->ldc);
    else if (!empty && !at && !bt && p->m > 1 && p->m <= most_rows)
        multiply_few_rows_in_out(p->m, p->n, p->k, p->alpha, p->a, p->lda, p->b, p->ldb, p->beta, p->c, p->ldc);
    else if (!empty && p->m <= (bt ? FEW : 1))
        vectors(p->m, p->n, p->k, p->alpha, p->b, bt ? NO_TRANS : TRANS, p->ldb, p->a, at ? 1 : p->lda, at ? p->lda : 1,
                p->beta, p->c, p->ldc, 1);
    else if (!empty && p->n <= (at ? 1 : FEW))
        vectors(p->n, p->m, p->k, p->alpha, p->a, at ? TRANS : NO_TRANS, p->lda, p->b, bt ? p->ldb : 1, bt ? 1 : p->ldb,
                p->beta, p->c, 1, p->ldc);
    else
        gemm(ROW_MAJOR, at ? TRANS : NO_TRANS, bt ? TRANS : NO_TRANS, p->m, p->n, p->k, p->alpha, p->a, p->lda, p->b,
             p->ldb, p->beta, p->c, p->ldc);
}

static void take_blocks(void)
{
    for (int block; (block = atomic_fetch_add(&next, 1)) < n_blocks;)
        job(job_data, block);
}

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void *help(void *unused)
{
    for (int seen = 0;;) {
        for (int i = 0; i < SPINS && atomic_load(&n_shared) == seen; i++)
            pause_briefly();
        pthread_mutex_lock(&lock);
        while (atomic_load(&n_shared) == seen)
            pthread_cond_wait(&shared, &lock);
        seen = atomic_load(&n_shared);
        atomic_fetch_add(&n_helping, 1);
        pthread_mutex_unlock(&lock);
        take_blocks();
        pthread_mutex_lock(&lock);
        atomic_fetch_sub(&n_helping, 1);
        pthread_cond_signal(&left);
        pthread_mutex_unlock(&lock);
    }
    return unused;
}

static void wait_for_helpers(void) /* with the lock held: sleeping leaves them this core */
{
    while (atomic_load(&n_helping) > 0)
        pthread_cond_wait(&left, &lock);
}

/* Whether p is one row times the keys or values of an attention head. sgemv is slower for matrices so narrow. */
static int is_of_a_head(const product *p)
{
    int width = p->bt ? p->k : p->n, fits = p->bt || width % 16 == 0;
    return p->m == 1 && p->n > 0 && p->k > 0 && (!p->at || p->lda == 1) && width <= HEAD && fits &&
           (double)p->n * p->k < LEAST && most_rows > 0;
}

void mlxgen_multiply(const product *p)
{
    if (!is_of_a_head(p))
        multiply(p);
    else if (p->bt)
        multiply_few_rows_out_in(1, p->n, p->k, p->alpha, p->a, 0, p->b, p->ldb, p->beta, p->c, 0);
    else
        multiply_few_rows_in_out(1, p->n, p->k, p->alpha, p->a, 0, p->b, p->ldb, p->beta, p->c, 0);
}

void mlxgen_in_blocks(void (*work)(const void *, int), const void *data, int blocks)
{
    if (n_threads == 1 || blocks == 1 || pthread_mutex_trylock(&user) != 0) {
        for (int block = 0; block < blocks; block++)
            work(data, block);
        return;
    }
    pthread_mutex_lock(&lock);
    wait_for_helpers(); /* one that came too late for the job before may still be there */
    job = work, job_data = data, n_blocks = blocks;
    atomic_store(&next, 0);
    atomic_fetch_add(&n_shared, 1);
    pthread_cond_broadcast(&shared);
    pthread_mutex_unlock(&lock);
    take_blocks();
    for (int i = 0; i < SPINS && atomic_load(&n_helping) > 0; i++)
        pause_briefly();
    pthread_mutex_lock(&lock);
    wait_for_helpers();
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&user);
}

/* A product that threads share. */
typedef struct {
    product whole;
    int size; /* rows of a block of a product that has more rows than columns, or else columns */
} shared_product;

static void multiply_block(const void *data, int block)
{
    const shared_product *of = data;
    product p = of->whole;
    int first = block * of->size;
    if (p.m > p.n) {
        p.a += p.at ? (size_t)first : (size_t)first * p.lda;
        p.c += (size_t)first * p.ldc;
        p.m = p.m - first < of->size ? p.m - first : of->size;
    } else {
        p.b += p.bt ? (size_t)first * p.ldb : (size_t)first;
        p.c += first;
        p.n = p.n - first < of->size ? p.n - first : of->size;
    }
    multiply(&p);
}

static void share(product p)
{
    int length = p.m > p.n ? p.m : p.n, other = p.m > p.n ? p.n : p.m;
    int size = length / (BLOCKS * n_threads) + 1, least = other < 64 ? 64 : other < WIDEST ? other : WIDEST;
    size = ((size > least ? size : least) + 15) / 16 * 16;
    if (n_threads == 1 || length <= size || (double)p.m * p.n * p.k < LEAST)
        multiply(&p);
    else
        mlxgen_in_blocks(multiply_block, &(shared_product){p, size}, (length - 1) / size + 1);
}

/* A product of one column as one of one row: C^T = op(B)^T op(A)^T. */
static product in_one_row(product p)
{
    return (product){!p.bt, !p.at, 1, p.m, p.k, p.alpha, p.b, p.ldb, p.a, p.lda, p.beta, p.c, p.m};
}

void cblas_sgemm(int order, int transa, int transb, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc)
{
    int at = transa != NO_TRANS, bt = transb != NO_TRANS;
    product p = {at, bt, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc};
    if (order != ROW_MAJOR) /* C^T = B^T A^T, with the same numbers in the same places */
        p = (product){bt, at, n, m, k, alpha, b, ldb, a, lda, beta, c, ldc};
    if (p.n == 1 && p.ldc == 1)
        p = in_one_row(p);
    if (is_of_a_head(&p)) /* never shared, so that its sums have the same order on any number of threads */
        mlxgen_multiply(&p);
    else
        share(p);
}

/* Use these functions of OpenBLAS, and as many threads. Called once, before any product. Returns whether this processor
   runs few_rows.c and operations.c. */
int mlxgen_use(gemm_t *m, gemv_t *v, void (*set_threads)(int), int threads)
{
    gemm = m, gemv = v, most_rows = most_few_rows();
    set_threads(1);
    for (pthread_t thread; n_threads < threads && pthread_create(&thread, NULL, help, NULL) == 0; n_threads++)
        pthread_detach(thread);
    return most_rows > 0;
}
