/* The decoder's arithmetic. kernels_*.c build one table each, for one instruction set, from the same source.
 *
 * What every kernel promises: a result depends on its own inputs only, bit for bit. Each output is summed by one
 * accumulator in one order, whatever else is computed at the same time. This makes an answer independent of its batch
 * mates, of how the prompt was cut into chunks, and of the number of threads.
 */
#ifndef CHIASM_KERNELS_H
#define CHIASM_KERNELS_H

#include <stdbool.h>
#include <stddef.h>

/* What happens to a product before it is stored. SWIGLU: outputs come in pairs, silu(first) x second is stored. GELU is
 * the exact one, the others its approximations by tanh and by x sigmoid(1.702 x). */
typedef enum { STORE, ADD, SWIGLU, GELU, GELU_TANH, GELU_SIGMOID } epilogue;

typedef struct {
    void *weights; /* packed, see `pack`; owned */
    float *bias;   /* packed like the weights; owned; or NULL */
    long inputs;
    long outputs; /* values stored per row */
    bool is_bf16;
    epilogue epilogue;
} linear;

/* Attention of consecutive tokens of one sequence, for the query heads that share one key head. */
typedef struct {
    const float *queries; /* of the first token and head; heads follow each other, tokens are `query_stride` apart */
    float *out;           /* alike, `out_stride` apart */
    const float *keys, *values; /* [tokens, dim] of the key head */
    float *scores;              /* scratch: rows x heads x (context + rows + 15) */
    size_t query_stride, out_stride;
    long rows, heads, dim;
    long context; /* tokens the first row attends to, itself included; each further row attends to one more */
    float scale;
} attention;

/* Attention of some tokens to all of a segment, for one head. Queries are scaled so that 2^(query x key) is a weight. */
typedef struct {
    const float *queries; /* [rows, dim] */
    const float *keys;    /* in panels of 2 x lanes, within a panel [dim, 2 x lanes] */
    const float *values;  /* [num_keys, dim] */
    float *out;           /* rows `out_stride` apart */
    float *scratch;       /* `mix_scratch(dim)` floats */
    size_t out_stride;
    long rows, num_keys, dim; /* at most MIX_ROWS rows */
} mixing;

enum { MIX_ROWS = 24, MIX_KEYS = 128 };
static inline long mix_scratch(long dim) { return MIX_ROWS * (MIX_KEYS + dim + 2); }

typedef struct {
    const char *name;
    long lanes; /* floats per vector; head sizes must be a multiple */
    /* Outputs per panel, the unit in which `apply` is asked for work. */
    long (*panel_outputs)(epilogue epilogue);
    /* Order [outputs, inputs] as `apply` reads it; the caller provides `panels x 2 x lanes x inputs` elements. */
    void (*pack)(const void *from, long outputs, long inputs, bool is_bf16, epilogue epilogue, void *to);
    /* x [rows, inputs] -> out [rows, outputs], for panels first .. last - 1. */
    void (*apply)(const linear *l, const float *x, long rows, long first, long last, float *out);
    /* For panels first .. last - 1 of products with weights in SWIGLU's order, stored as they are in `raw` [rows, panels, 2
     * x lanes]: what SWIGLU would have stored in `out` [rows, outputs]. */
    void (*swiglu)(const float *raw, long rows, long panels, long first, long last, long outputs, float *out);
    /* x / rms(x) x weight; `out` may be `x`. */
    void (*norm)(const float *x, const float *weight, long width, float eps, float *out);
    /* Rotate pairs (i, i + dim / 2) in place. */
    void (*rotate)(float *x, const float *cosine, const float *sine, long dim);
    void (*attend)(const attention *a);
    /* (x - mean(x)) / deviation(x) x weight + bias; `out` may be `x`. */
    void (*layer_norm)(const float *x, const float *weight, const float *bias, long width, float eps, float *out);
    void (*mix)(const mixing *m);
} kernels;

/* The table of that name ("" takes the best for this CPU and head size); NULL when this build or this CPU lacks it. */
const kernels *find_kernels(const char *name, long head_dim);

static inline long divide_up(long a, long b) { return (a + b - 1) / b; }
static inline long smaller(long a, long b) { return a < b ? a : b; }

#endif
