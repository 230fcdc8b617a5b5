#include "tower_parts.h"

/* Rows that go through a layer's products together, their values in the second cache; a multiple of any tile. */
#define ROWS_AT_ONCE 48

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

/* What a step's phases read. Threads have copies; one that is late by a step finds nothing to do with its copy. */
typedef struct {
    const tower *t;
    tower_step step;
    const place *places;
    const block *blocks;
    segments segments[2]; /* pictures, windows */
    float *x, *queries, *keys, *values, *attended, *merged, *active, *scratch;
    size_t scratch_per_thread;
    long number; /* of the layer, or merger */
    long begin, end; /* the layers to be computed now; -1 stands for what comes before the first */
} job;
_Static_assert(sizeof(job) <= MOST_JOB_BYTES, "a job fits into the team's copy");

/* ---- what is computed row by row ---- */

static void normalise(const job *j, const float *x, const norm *n, long width, float *out) {
    const kernels *k = j->t->k;
    if (j->t->shape.is_rms) k->norm(x, n->weight, width, j->t->shape.eps, out);
    else k->layer_norm(x, n->weight, n->bias, width, j->t->shape.eps, out);
}

static void normalise_rows(const job *j, const norm *n, long first, long rows, float *out) {
    const long width = j->t->shape.hidden;
    for (long i = 0; i < rows; i++) normalise(j, j->x + (first + i) * width, n, width, out + i * width);
}

static void apply_all(const job *j, const linear *l, const float *x, long rows, float *out) {
    j->t->k->apply(l, x, rows, 0, linear_panels(j->t->k, l), out);
}

static const place *origin(const job *j, long row) { return j->places + j->places[row].source; }

/* Where a cell of `size` falls on a side of learned positions: between `*at` and the next, and how far. */
static float resample(long index, long size, long side, long *at) {
    const float place = (float)index * (float)(side - 1) / (float)(size > 1 ? size - 1 : 1);
    *at = smaller((long)place, side - 1);
    return place - (float)*at;
}

static void add_position(const job *j, const int64_t *grid, const place *p, float *x) {
    const long side = j->t->shape.position_side, width = j->t->shape.hidden;
    long top, left;
    const float down = resample(p->top, grid[0], side, &top), right = resample(p->left, grid[1], side, &left);
    const float *above = j->t->positions + top * side * width, *below = above + (top + 1 < side) * side * width;
    const long a = left * width, b = smaller(left + 1, side - 1) * width;
    const float w[4] = {(1 - down) * (1 - right), (1 - down) * right, down * (1 - right), down * right};
    for (long i = 0; i < width; i++)
        x[i] += above[a + i] * w[0] + above[b + i] * w[1] + below[a + i] * w[2] + below[b + i] * w[3];
}

static void add_positions(const job *j, long first, long rows) {
    const int64_t *grid = j->step.grids;
    long end = grid[0] * grid[1];
    for (long i = first; i < first + rows; i++) {
        while (i >= end) grid += 2, end += grid[0] * grid[1];
        add_position(j, grid, origin(j, i), j->x + i * j->t->shape.hidden);
    }
}

static void gather(const job *j, long first, long rows, long width, float *to) {
    for (long i = 0; i < rows; i++)
        memcpy(to + i * width, j->step.patches + (size_t)j->places[first + i].source * width, width * sizeof(float));
}

static void gather_first_frames(const job *j, long first, long rows, float *to) {
    const tower_shape *s = &j->t->shape;
    const long pixels = s->patch_pixels, inputs = s->channels * pixels;
    for (long i = 0; i < rows; i++) {
        const float *from = j->step.patches + (size_t)j->places[first + i].source * inputs * s->frames;
        for (long c = 0; c < s->channels; c++)
            memcpy(to + i * inputs + c * pixels, from + c * s->frames * pixels, pixels * sizeof(float));
    }
}

static void embed(const job *j, long first, long rows, float *wide) {
    const long hidden = j->t->shape.hidden;
    float *x = j->x + first * hidden;
    if (j->step.is_embedded) gather(j, first, rows, hidden, x);
    else {
        gather_first_frames(j, first, rows, wide);
        apply_all(j, &j->t->patches, wide, rows, x);
    }
    if (j->t->positions) add_positions(j, first, rows);
}

/* The rotation of a row: its first half by height, its second by width. */
static void rotation(const job *j, long row, float *cosine, float *sine) {
    const long quarter = j->t->shape.head_dim / 4;
    const place *p = origin(j, row);
    const long from[2] = {p->top * quarter, p->left * quarter};
    for (int axis = 0; axis < 2; axis++) {
        memcpy(cosine + axis * quarter, j->step.cosine + from[axis], quarter * sizeof(float));
        memcpy(sine + axis * quarter, j->step.sine + from[axis], quarter * sizeof(float));
    }
}

/* Rotate a row's queries and keys, and put all three where attention wants them. */
static void place_row(const job *j, float *qkv, long row, long key, long num_keys, float *tables) {
    const tower_shape *s = &j->t->shape;
    const long dim = s->head_dim, panel = 2 * j->t->k->lanes, rows = j->step.rows;
    const float scale = s->scale * 1.44269504f; /* weights are powers of two */
    rotation(j, row, tables, tables + dim / 2);
    for (long h = 0; h < 2 * s->heads; h++) j->t->k->rotate(qkv + h * dim, tables, tables + dim / 2, dim);
    for (long h = 0; h < s->heads; h++) {
        const float *q = qkv + h * dim, *k = q + s->heads * dim, *v = k + s->heads * dim;
        float *query = j->queries + (h * rows + row) * dim;
        float *column = j->keys + (h * num_keys + key / panel * panel) * dim + key % panel;
        for (long i = 0; i < dim; i++) query[i] = q[i] * scale;
        for (long i = 0; i < dim; i++) column[i * panel] = k[i];
        memcpy(j->values + (h * rows + row) * dim, v, dim * sizeof(float));
    }
}

static void project(const job *j, long number, long first, long rows, float *narrow, float *wide) {
    const tower_layer *l = &j->t->layers[number];
    const segments *segments = &j->segments[l->is_windowed];
    normalise_rows(j, &l->norm1, first, rows, narrow);
    apply_all(j, &l->qkv, narrow, rows, wide);
    for (long i = 0; i < rows; i++) /* `narrow` is free again: it holds the row's rotation */
        place_row(j, wide + i * l->qkv.outputs, first + i, j->places[first + i].key[l->is_windowed], segments->keys, narrow);
}

static void finish(const job *j, const tower_layer *l, long first, long rows, float *narrow, float *wide) {
    float *x = j->x + first * j->t->shape.hidden;
    apply_all(j, &l->out, j->attended + first * attended_width(&j->t->shape), rows, x);
    normalise_rows(j, &l->norm2, first, rows, narrow);
    apply_all(j, &l->up, narrow, rows, wide);
    apply_all(j, &l->down, wide, rows, x);
}

/* ---- phases; each does a range of its units ---- */

typedef void (*phase)(const job *j, long first, long last, float *scratch);

static long narrow_width(const tower_shape *s) { return s->hidden > s->head_dim ? s->hidden : s->head_dim; }

/* Before the first layer, and after each: all that lies between two layers' attention. */
static void between(const job *j, long first, long last, float *narrow) {
    const tower_shape *s = &j->t->shape;
    float *wide = narrow + ROWS_AT_ONCE * narrow_width(s);
    for (long unit = first; unit < last; unit++) {
        const long row = unit * ROWS_AT_ONCE, rows = smaller(ROWS_AT_ONCE, j->step.rows - row);
        if (j->number < 0) embed(j, row, rows, wide);
        else finish(j, &j->t->layers[j->number], row, rows, narrow, wide);
        if (j->number + 1 < s->num_layers) project(j, j->number + 1, row, rows, narrow, wide);
    }
}

static void attend(const job *j, long first, long last, float *scratch) {
    const tower_shape *s = &j->t->shape;
    const segments *segments = &j->segments[j->t->layers[j->number].is_windowed];
    const long dim = s->head_dim, rows = j->step.rows;
    const block *blocks = j->blocks + segments->first;
    for (const block *b = blocks + first; b < blocks + last; b++) {
        const mixing m = {
            .queries = j->queries + (b->head * rows + b->row) * dim,
            .keys = j->keys + (b->head * segments->keys + b->key) * dim,
            .values = j->values + (b->head * rows + b->start) * dim,
            .out = j->attended + b->row * attended_width(s) + b->head * dim,
            .scratch = scratch,
            .out_stride = attended_width(s),
            .rows = b->rows,
            .num_keys = b->num_keys,
            .dim = dim,
        };
        j->t->k->mix(&m);
    }
}

static void norm_merged(const job *j, long first, long last, float *scratch) {
    (void)scratch;
    const merger *m = &j->t->mergers[j->number];
    const long width = j->t->shape.hidden * (m->is_norm_of_merged ? square(&j->t->shape) : 1);
    for (long i = first; i < last; i++) normalise(j, j->x + i * width, &m->norm, width, j->merged + i * width);
}

static void merge_up(const job *j, long first, long last, float *scratch) {
    (void)scratch;
    const merger *m = &j->t->mergers[j->number];
    j->t->k->apply(&m->up, j->merged, j->step.rows / square(&j->t->shape), first, last, j->active);
}

static void merge_down(const job *j, long first, long last, float *scratch) {
    (void)scratch;
    const merger *m = &j->t->mergers[j->number];
    const long squares = j->step.rows / square(&j->t->shape);
    j->t->k->apply(&m->down, j->active, squares, first, last, j->step.out + j->number * squares * m->down.outputs);
}

/* ---- the phases' order ---- */

typedef struct {
    const job *job;
    phase phase;
} job_phase;

static void run_phase(const void *context, long first, long last, int thread) {
    const job_phase *p = context;
    p->phase(p->job, first, last, p->job->scratch + thread * p->job->scratch_per_thread);
}

static void share(member *me, const job *j, phase phase, long total, long unit) {
    const job_phase p = {j, phase};
    team_deal(me, total, unit, run_phase, &p);
}

static void run_merger(member *me, job *j, long number) {
    const merger *m = &j->t->mergers[number];
    j->number = number;
    share(me, j, norm_merged, m->is_norm_of_merged ? j->step.rows / square(&j->t->shape) : j->step.rows, 1);
    share(me, j, merge_up, linear_panels(j->t->k, &m->up), 4);
    share(me, j, merge_down, linear_panels(j->t->k, &m->down), 4);
}

static void run_layers(const void *shared, member *me) {
    job j = *(const job *)shared;
    const tower_shape *s = &j.t->shape;
    for (long layer = j.begin; layer < j.end; layer++) {
        j.number = layer;
        if (layer >= 0) share(me, &j, attend, j.segments[j.t->layers[layer].is_windowed].blocks, 1);
        share(me, &j, between, divide_up(j.step.rows, ROWS_AT_ONCE), 1);
        for (long i = 0; layer >= 0 && i <= s->num_levels; i++)
            if (j.t->mergers[i].after == layer) run_merger(me, &j, i);
    }
}

/* ---- a step ---- */

static const char *check_weights(const tower *t, const tower_step *s) {
    bool is_complete = s->is_embedded || t->patches.weights;
    for (long i = 0; i < t->shape.num_layers; i++) is_complete = is_complete && t->layers[i].down.weights;
    for (long i = 0; i <= t->shape.num_levels; i++) is_complete = is_complete && t->mergers[i].down.weights;
    return is_complete ? NULL : "weights that were not set";
}

static const char *check_windows(const tower *t, const tower_step *s) {
    bool has_windows = false;
    for (long i = 0; i < t->shape.num_layers; i++) has_windows = has_windows || t->layers[i].is_windowed;
    int64_t rows = 0;
    for (long i = 0; i < s->num_windows; i++) {
        if (s->windows[i] < 1 || s->windows[i] > s->rows - rows) return "a window of other than its patches";
        rows += s->windows[i];
    }
    return rows == (has_windows ? s->rows : 0) ? NULL : "windows that are not all patches";
}

const char *tower_check(const tower *t, const tower_step *s) {
    const long merge = t->shape.merge, squares = s->rows / square(&t->shape);
    int64_t rows = 0;
    if (s->rows < 1 || s->rows > INT32_MAX / 2) return "a number of patches that cannot be computed at once";
    for (const int64_t *g = s->grids; g < s->grids + 2 * s->num_grids; g += 2) {
        if (g[0] < 1 || g[1] < 1 || g[0] % merge || g[1] % merge) return "a grid that is not made of whole squares";
        if (g[0] > s->num_positions || g[1] > s->num_positions) return "a grid that is larger than the rotation's table";
        if (g[0] > s->rows || g[1] > s->rows || g[0] * g[1] > s->rows - rows) return "fewer patches than the grids have";
        rows += g[0] * g[1];
    }
    if (rows != s->rows) return "more patches than the grids have";
    for (long i = 0; s->order && i < squares; i++)
        if (s->order[i] < 0 || s->order[i] >= squares) return "a square that is not there";
    const char *problem = check_windows(t, s);
    return problem ? problem : check_weights(t, s);
}

static void fill_places(const tower *t, const tower_step *s, place *places) {
    const long merge = t->shape.merge, size = square(&t->shape);
    place *p = places;
    for (const int64_t *g = s->grids; g < s->grids + 2 * s->num_grids; g += 2)
        for (long i = 0; i < g[0] * g[1]; i++, p++) {
            const long in = i % size, at = i / size, across = g[1] / merge;
            p->top = at / across * merge + in / merge;
            p->left = at % across * merge + in % merge;
        }
    for (long i = 0; i < s->rows; i++) places[i].source = s->order ? s->order[i / size] * size + i % size : i;
}

static void add_segment(const tower *t, long start, long length, int list, place *places, block *blocks, segments *to) {
    for (long i = 0; i < length; i++) places[start + i].key[list] = to->keys + i;
    for (long head = 0; head < t->shape.heads; head++)
        for (long i = 0; i < length; i += MIX_ROWS)
            blocks[to->first + to->blocks++] =
                (block){head, start + i, smaller(MIX_ROWS, length - i), start, length, to->keys};
    const long panel = 2 * t->k->lanes;
    to->keys += divide_up(length, panel) * panel;
}

static void fill_segments(const tower *t, const tower_step *s, place *places, block *blocks, segments to[2]) {
    long row = 0;
    for (const int64_t *g = s->grids; g < s->grids + 2 * s->num_grids; row += g[0] * g[1], g += 2)
        add_segment(t, row, g[0] * g[1], 0, places, blocks, &to[0]);
    to[1].first = to[0].blocks;
    row = 0;
    for (const int64_t *w = s->windows; w < s->windows + s->num_windows; row += *w++)
        add_segment(t, row, *w, 1, places, blocks, &to[1]);
}

static size_t scratch_floats(const tower_shape *s) {
    const long widths[] = {3 * attended_width(s), s->intermediate, s->channels * s->patch_pixels};
    long wide = 0;
    for (int i = 0; i < 3; i++) wide = widths[i] > wide ? widths[i] : wide;
    const size_t rows = ROWS_AT_ONCE * (narrow_width(s) + wide), mixing = mix_scratch(s->head_dim);
    return (rows > mixing ? rows : mixing) + 16;
}

static double products(const tower *t, const tower_step *s) {
    const tower_shape *shape = &t->shape;
    const double layer = 4.0 * attended_width(shape) + 2.0 * shape->intermediate;
    return (double)s->rows * shape->hidden * (shape->channels * shape->patch_pixels + shape->num_layers * layer);
}

tower_outcome tower_run(tower *t, const tower_step *s, const tower_pause *pause) {
    const tower_shape *shape = &t->shape;
    const long most_segments = s->num_grids + s->num_windows, panel = 2 * t->k->lanes;
    const size_t row = s->rows * sizeof(float), width = attended_width(shape);
    const size_t most_keys = s->rows + most_segments * panel;
    const size_t most_blocks = shape->heads * (2 * (s->rows / MIX_ROWS) + most_segments);
    job j = {.t = t, .step = *s, .scratch_per_thread = scratch_floats(shape)};
    if (!grow(&t->places, s->rows * sizeof(place)) || !grow(&t->blocks, most_blocks * sizeof(block)) ||
        !grow(&t->x, row * shape->hidden) || !grow(&t->queries, row * width) || !grow(&t->values, row * width) ||
        !grow(&t->keys, most_keys * width * sizeof(float)) || !grow(&t->attended, row * width) ||
        !grow(&t->merged, row * shape->hidden) || !grow(&t->active, row * shape->hidden) ||
        !grow(&t->scratch, j.scratch_per_thread * team_threads(t->team) * sizeof(float)))
        return TOWER_NO_MEMORY;
    fill_places(t, s, t->places.data);
    fill_segments(t, s, t->places.data, t->blocks.data, j.segments);
    j.places = t->places.data;
    j.blocks = t->blocks.data;
    j.x = has_mergers(shape) ? t->x.data : s->out;
    j.queries = t->queries.data;
    j.keys = t->keys.data;
    j.values = t->values.data;
    j.attended = t->attended.data;
    j.merged = t->merged.data;
    j.active = t->active.data;
    j.scratch = t->scratch.data;
    const bool is_alone = products(t, s) < shape->alone_products;
    for (j.begin = -1; j.begin < shape->num_layers; j.begin = j.end) {
        if (pause && j.begin >= 0 && !pause->call(pause->context)) return TOWER_ABANDONED;
        j.end = pause ? j.begin + 1 : shape->num_layers;
        member alone = {0};
        if (is_alone) run_layers(&j, &alone);
        else team_run(t->team, run_layers, &j, sizeof j);
    }
    return TOWER_DONE;
}
