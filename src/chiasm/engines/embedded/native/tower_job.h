/* What tower_step.c and tower_phases.c share: a step as its stages, which threads do one after the other. */
#ifndef CHIASM_TOWER_JOB_H
#define CHIASM_TOWER_JOB_H

#include "tower_parts.h"

/* The most rows that go through a layer's products together, their values in the second cache; they pass over all of its
 * weights, so that the 50 rows of many a picture are better not more than one such unit. */
#define ROWS_AT_ONCE 52

/* A row's origin and places. `top` and `left` are those of the row that was given in this place. */
typedef struct {
    int32_t source, top, left;
    int32_t key[2]; /* among the keys, for pictures and for windows */
} place;

/* Queries of one head that are attended together, and their segment. */
typedef struct {
    long head, row, rows, start, num_keys, key;
} block;

typedef struct {
    long keys;   /* with those that fill up panels */
    long blocks; /* in `job.blocks`, from `first` on */
    long first;
} segments;

typedef struct job job;

/* A phase does a range of its units; each is computed by itself. */
typedef void (*phase)(const job *j, long first, long last, float *scratch);

/* What threads share out among them before they meet: one phase of a layer or merger. */
typedef struct {
    phase phase;
    long number; /* of the layer, or merger; -1 stands for what comes before the first layer */
    long units;
    long least;      /* a thread gets a multiple of so many */
    double products; /* multiplications of a unit */
} stage;

/* What is computed until the caller looks whether to pause. */
typedef struct {
    stage stages[4]; /* `units` is where to end, which is only in the last before its own end */
    long count, from; /* `from`: the unit of the first stage to begin with */
} piece;

/* What a piece's phases read. Threads have copies; one that is late by a piece finds nothing to do with its copy. */
struct job {
    const tower *t;
    tower_step step;
    const place *places;
    const block *blocks;
    segments segments[3]; /* pictures, windows, rows kept: keys are those of pictures */
    float *x, *queries, *keys, *values, *attended, *merged, *active, *scratch;
    size_t scratch_per_thread;
    long number; /* of the layer, or merger */
    long unit;   /* rows that `between` takes at once */
    piece piece;
};
_Static_assert(sizeof(job) <= MOST_JOB_BYTES, "a job fits into the team's copy");

/* Room for a tower's stages, and their description; returns how many there are. The job's places and segments are known. */
long tower_most_stages(const tower_shape *s);
long tower_fill_stages(const job *j, stage *to);

/* Floats of scratch memory for one thread. */
size_t tower_scratch(const tower_shape *s);

#endif
