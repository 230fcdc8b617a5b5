/* What tower.c and tower_step.c share. */
#ifndef CHIASM_TOWER_PARTS_H
#define CHIASM_TOWER_PARTS_H

#include "linear.h"
#include "memory.h"
#include "tower.h"

typedef struct {
    float *weight, *bias;
} norm;

typedef struct {
    norm norm1, norm2;
    linear qkv, out, up, down;
    bool is_windowed;
} tower_layer;

typedef struct {
    norm norm;
    linear up, down;
    long after;
    bool is_norm_of_merged;
} merger;

struct tower {
    const kernels *k;
    tower_shape shape;
    team *team;
    linear patches;
    float *positions;
    tower_layer *layers;
    merger *mergers;
    /* scratch of a step; grows, never shrinks */
    buffer x, queries, keys, values, attended, merged, active, places, blocks, stages, scratch;
};

static inline long attended_width(const tower_shape *s) { return s->heads * s->head_dim; }
static inline bool has_mergers(const tower_shape *s) { return s->num_levels >= 0; }
static inline long square(const tower_shape *s) { return s->merge * s->merge; }

#endif
