/* A text encoder of BERT's kind over texts that lie end to end: weights, scratch memory and threads of one model. */
#ifndef CHIASM_TEXT_ENCODER_H
#define CHIASM_TEXT_ENCODER_H

#include "kernels.h"
#include "team.h"

#include <stdint.h>

typedef struct {
    long num_layers, hidden, heads, head_dim, intermediate;
    long num_words, num_positions, num_types; /* rows of the tables; 0 types for none */
    epilogue activation;
    float eps, scale;      /* of all norms; of attention scores */
    double alone_products; /* texts of fewer multiplications are computed by the caller alone */
} text_shape;

/* All float32. The tables [rows, hidden] stay the caller's, who keeps them as long as the encoder; `types` may be NULL. */
typedef struct {
    const float *words, *positions, *types, *norm, *norm_bias;
} text_tables;

/* Matrices are [outputs, inputs]. Each norm follows the sum that it is named after. */
typedef struct {
    const float *qkv, *out, *up, *down;
    const float *qkv_bias, *out_bias, *up_bias, *down_bias;
    const float *attention_norm, *attention_norm_bias, *norm, *norm_bias;
} text_layer_weights;

typedef struct {
    const int64_t *ids, *positions, *types; /* [rows]; `types` NULL without a table of them */
    long rows;
    const int64_t *lengths; /* [num_texts] */
    long num_texts;
    const int64_t *kept; /* [num_kept], ascending: rows wanted after the last layer, which computes no others; NULL: all */
    long num_kept;
    float *out; /* [rows or num_kept, hidden] */
} text_step;

typedef struct text_encoder text_encoder;

/* NULL with errno when memory or threads are refused. `k` must suit the head size. */
text_encoder *text_encoder_new(const kernels *k, const text_shape *shape, int threads);
void text_encoder_free(text_encoder *t);
const text_shape *text_encoder_get_shape(const text_encoder *t);

/* Copy and reorder weights, but for the tables. False when memory is refused. */
bool text_encoder_set_tables(text_encoder *t, const text_tables *w);
bool text_encoder_set_layer(text_encoder *t, long number, const text_layer_weights *w);

/* NULL, or what is wrong with a step: places outside the memory given, or weights that were not set. */
const char *text_encoder_check(const text_encoder *t, const text_step *s);

/* False when memory is refused, before anything is computed. One caller at a time. */
bool text_encoder_run(text_encoder *t, const text_step *s);

#endif
