/* What text_encoder.c and text_encoder_step.c share. */
#ifndef CHIASM_TEXT_ENCODER_PARTS_H
#define CHIASM_TEXT_ENCODER_PARTS_H

#include "linear.h"
#include "memory.h"
#include "text_encoder.h"

typedef struct {
    float *weight, *bias;
} text_norm;

typedef struct {
    linear qkv, out, up, down;
    text_norm attention_norm, norm;
} text_layer;

struct text_encoder {
    const kernels *k;
    text_shape shape;
    team *team;
    const float *words, *positions, *types;
    text_norm norm;
    text_layer *layers;
    /* scratch of a step; grows, never shrinks */
    buffer x, queries, keys, values, attended, places, blocks, scratch;
};

static inline long attended_width(const text_shape *s) { return s->heads * s->head_dim; }

#endif
