/* A Llama-shaped decoder over packed tokens: weights, scratch memory and threads of one model. */
#ifndef CHIASM_DECODER_H
#define CHIASM_DECODER_H

#include "kernels.h"
#include "team.h"

#include <stdint.h>

typedef struct {
    long num_layers, hidden, heads, kv_heads, head_dim, intermediate, vocab;
    bool is_bf16;     /* of weights; everything else is float32 */
    float eps, scale; /* of all norms; of attention scores */
    double alone_products; /* steps of fewer multiplications are computed by the caller alone */
} decoder_shape;

/* Any of them may be NULL where the model has none. Matrices are [outputs, inputs] in the weights' type, the rest
 * float32. `qkv` and `gate_up` are the stacked matrices. */
typedef struct {
    const float *input_norm, *post_norm, *q_norm, *k_norm;
    const void *qkv, *out, *gate_up, *down;
    const float *qkv_bias, *out_bias, *gate_up_bias, *down_bias;
} layer_weights;

/* Tokens start .. start + count - 1 of the sequence in `slot`; three int64 from Python. */
typedef struct {
    int64_t slot, start, count;
} run_of_tokens;

struct adapter;

/* Rows row .. row + count - 1 are computed with an adapter. */
typedef struct {
    const struct adapter *adapter;
    long row, count;
} adapted_rows;

typedef struct {
    float *x;                   /* [rows, hidden], overwritten */
    const float *cosine, *sine; /* [rows, head_dim]: the first half of cosine and the second of sine are read */
    long rows;
    float *kv; /* [layers, slots, 2, kv_heads, max_tokens, head_dim] */
    long slots, max_tokens;
    const run_of_tokens *runs; /* of all rows, in order; a slot occurs once */
    long num_runs;
    const int64_t *deep_rows; /* [num_deep]: rows that get a further vector after each of the first layers */
    const float *deep;        /* [num_levels, num_deep, hidden] */
    long num_deep, num_levels;
    const int64_t *wanted; /* [num_wanted], ascending: rows whose output is wanted; only with fewer levels than layers */
    float *kept;           /* [num_wanted, hidden]: takes their output; `x` is left half computed */
    long num_wanted;       /* negative for all rows, in place */
    const adapted_rows *adapted; /* ascending, not overlapping; made for this decoder */
    long num_adapted;
} decoder_step;

typedef struct decoder decoder;

/* NULL with errno when memory or threads are refused. `k` must suit the head size. */
decoder *decoder_new(const kernels *k, const decoder_shape *shape, int threads);
void decoder_free(decoder *d);
const decoder_shape *decoder_get_shape(const decoder *d);

static inline long decoder_attended_width(const decoder_shape *s) { return s->heads * s->head_dim; }
static inline long decoder_qkv_width(const decoder_shape *s) { return (s->heads + 2 * s->kv_heads) * s->head_dim; }

/* Copy and reorder weights. False when memory is refused. */
bool decoder_set_layer(decoder *d, long number, const layer_weights *w);
bool decoder_set_head(decoder *d, const float *norm, const void *weights);

/* NULL, or what is wrong with a step: places outside the memory given. */
const char *decoder_check(const decoder *d, const decoder_step *s);

/* All layers. False when memory is refused, before anything is computed. */
bool decoder_run(decoder *d, const decoder_step *s);

/* Final norm and head: x [rows, hidden] -> out [rows, vocab]. False as above. */
bool decoder_logits(decoder *d, const float *x, long rows, float *out);

#endif
