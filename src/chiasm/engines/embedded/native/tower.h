/* A vision tower over pictures' patches: weights, scratch memory and threads of one model. */
#ifndef CHIASM_TOWER_H
#define CHIASM_TOWER_H

#include "kernels.h"
#include "team.h"

#include <stdint.h>

typedef struct {
    long num_layers, hidden, heads, head_dim, intermediate;
    long channels, frames, patch_pixels; /* a patch is [channels, frames, patch_pixels]; frames are alike */
    long merge;                          /* side of the squares of patches that become one embedding */
    long out_hidden, num_levels;         /* of embeddings; deepstack levels beside the last layer's, or -1: no mergers */
    long position_side;                  /* of the square of learned positions; 0 for none */
    bool is_bf16, is_rms;                /* of weight matrices; whether norms are by root mean square */
    epilogue activation;                 /* with SWIGLU, `up` is the stacked gate and up */
    float eps, scale;                    /* of all norms; of attention scores */
    double alone_products;               /* pictures of fewer multiplications are computed by the caller alone */
} tower_shape;

/* Matrices are [outputs, inputs] in the weights' type, the rest float32. Biases may be NULL, those of layer norms not. */
typedef struct {
    const float *norm1, *norm1_bias, *norm2, *norm2_bias;
    const void *qkv, *out, *up, *down;
    const float *qkv_bias, *out_bias, *up_bias, *down_bias;
    bool is_windowed; /* attends within windows, not pictures */
} tower_layer_weights;

typedef struct {
    const float *norm, *norm_bias;
    const void *up, *down;
    const float *up_bias, *down_bias;
    long after;           /* the layer whose output is merged */
    bool is_norm_of_merged; /* the norm is over a whole square of patches */
} merger_weights;

typedef struct {
    const float *patches; /* [rows, channels, frames, patch_pixels], squares of patches together */
    bool is_embedded;     /* `patches` are [rows, hidden] instead: products with the kernel, bias included */
    long rows;
    const int64_t *grids; /* [num_grids, 2]: height and width in patches of each picture, in order */
    long num_grids;
    const int64_t *order; /* [rows / merge^2]: which square is computed in this place; NULL for the given order */
    const int64_t *windows; /* [num_windows]: patches of each window, in computing order; for models that have them */
    long num_windows;
    const float *cosine, *sine; /* [num_positions, head_dim / 4] */
    long num_positions;
    const int64_t *kept; /* [num_kept], ascending: rows wanted after the last layer, which computes no others; NULL: all */
    long num_kept;       /* only without mergers, windows and an order */
    bool is_alone;       /* on the caller's thread, however much there is to do */
    float *out; /* [1 + num_levels, rows / merge^2, out_hidden], or without mergers [rows or num_kept, hidden]; in
                   computing order */
} tower_step;

typedef struct tower tower;

/* NULL with errno when memory or threads are refused. `k` must suit the head size. */
tower *tower_new(const kernels *k, const tower_shape *shape, int threads);
void tower_free(tower *t);
const tower_shape *tower_get_shape(const tower *t);

/* Copy and reorder weights. False when memory is refused. Of the kernel of the patches only one frame, [hidden, channels
 * x patch_pixels]. Merger 0 is the one of the last layer, then come the levels'. */
bool tower_set_embedding(tower *t, const void *weights, const float *bias, const float *positions);
bool tower_set_layer(tower *t, long number, const tower_layer_weights *w);
bool tower_set_merger(tower *t, long number, const merger_weights *w);

/* NULL, or what is wrong with a step: places outside the memory given, or weights that were not set. */
const char *tower_check(const tower *t, const tower_step *s);

/* Called between two pieces of a step, on the caller's thread, while `asked`, which other threads may set, is not 0; false
 * abandons the step. It must not use the same tower. A piece has so many multiplications for each thread, or one unit for
 * each of what threads share out: up to 52 rows between two layers' attention. */
typedef struct {
    bool (*call)(void *context);
    void *context;
    const int32_t *asked;
    double piece_products;
} tower_pause;

typedef enum { TOWER_DONE, TOWER_NO_MEMORY, TOWER_ABANDONED } tower_outcome;

/* `pause` may be NULL. Memory is refused before anything is computed. */
tower_outcome tower_run(tower *t, const tower_step *s, const tower_pause *pause);

#endif
