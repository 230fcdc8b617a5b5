/* What the decoder's files share: its weights and scratch, and a step cut into parts. */
#ifndef CHIASM_DECODER_PARTS_H
#define CHIASM_DECODER_PARTS_H

#include "adapter.h"
#include "memory.h"

typedef struct {
    float *input_norm, *post_norm, *q_norm, *k_norm;
    linear qkv, out, gate_up, down;
} layer;

struct decoder {
    const kernels *k;
    decoder_shape shape;
    team *team;
    layer *layers;
    float *final_norm;
    linear head;
    buffer norm, qkv, attended, active, scores, tiles, low, raw, adapted; /* scratch of a step; grows, never shrinks */
};

/* Consecutive tokens of a run that are attended together: rows row .. row + count - 1; the result goes to rows from `out`
 * on. */
typedef struct {
    long row, slot, start, count, out;
} tile;

/* What a step's phases read. Threads have copies; one that is late by a step finds nothing to do with its copy. */
typedef struct {
    const decoder *d;
    decoder_step step;
    const tile *tiles; /* after those of all rows, one for each wanted row */
    long num_tiles, most_keys;
    size_t scores_per_thread;
    float *norm, *qkv, *attended, *active, *scores;
    float *low, *raw;             /* of rows with adapters: [rows, most_rank]; gates and ups of all rows, in panels */
    const adapted_rows *adapted;  /* after those of all rows, those of the wanted ones */
    long num_adapted, num_wanted_adapted, most_rank;
    bool touches[NUM_PARTS]; /* by any adapter of the step */
    int part;
    const layer *layer;
    long number; /* of the layer */
    float *logits;
} job;
_Static_assert(sizeof(job) <= MOST_JOB_BYTES, "a job fits into the team's copy");

/* Cut a step's rows into what threads share, and find the sizes of scratch. False when memory is refused. */
bool decoder_cut(decoder *d, const decoder_step *s, job *j);

#endif
