#include "tower_job.h"

/* ---- what is computed row by row ---- */

static void normalise(const job *j, const float *x, const norm *n, long width, float *out) {
    const kernels *k = j->t->k;
    if (j->t->shape.is_rms) k->norm(x, n->weight, width, j->t->shape.eps, out);
    else k->layer_norm(x, n->weight, n->bias, width, j->t->shape.eps, out);
}

static void normalise_rows(const job *j, const float *x, const norm *n, long rows, float *out) {
    const long width = j->t->shape.hidden;
    for (long i = 0; i < rows; i++) normalise(j, x + i * width, n, width, out + i * width);
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
    normalise_rows(j, j->x + first * j->t->shape.hidden, &l->norm1, rows, narrow);
    apply_all(j, &l->qkv, narrow, rows, wide);
    for (long i = 0; i < rows; i++) /* `narrow` is free again: it holds the row's rotation */
        place_row(j, wide + i * l->qkv.outputs, first + i, j->places[first + i].key[l->is_windowed], segments->keys, narrow);
}

static void finish(const job *j, const tower_layer *l, const float *attended, long rows, float *x, float *narrow, float *wide) {
    apply_all(j, &l->out, attended, rows, x);
    normalise_rows(j, x, &l->norm2, rows, narrow);
    apply_all(j, &l->up, narrow, rows, wide);
    apply_all(j, &l->down, wide, rows, x);
}

/* ---- phases ---- */

static long narrow_width(const tower_shape *s) { return s->hidden > s->head_dim ? s->hidden : s->head_dim; }

/* Before the first layer, and after each: all that lies between two layers' attention. */
static void between(const job *j, long first, long last, float *narrow) {
    const tower_shape *s = &j->t->shape;
    const long width = attended_width(s);
    float *wide = narrow + ROWS_AT_ONCE * narrow_width(s);
    for (long unit = first; unit < last; unit++) {
        const long row = unit * j->unit, rows = smaller(j->unit, j->step.rows - row);
        if (j->number < 0) embed(j, row, rows, wide);
        else finish(j, &j->t->layers[j->number], j->attended + row * width, rows, j->x + row * s->hidden, narrow, wide);
        if (j->number + 1 < s->num_layers) project(j, j->number + 1, row, rows, narrow, wide);
    }
}

/* After the last layer, where only some rows are wanted. */
static void end_kept(const job *j, long first, long last, float *narrow) {
    const tower_shape *s = &j->t->shape;
    const long width = attended_width(s);
    float *wide = narrow + ROWS_AT_ONCE * narrow_width(s);
    for (long unit = first; unit < last; unit++) {
        const long row = unit * ROWS_AT_ONCE, rows = smaller(ROWS_AT_ONCE, j->step.num_kept - row);
        const int64_t *kept = j->step.kept + row;
        float *x = j->step.out + row * s->hidden;
        for (long i = 0; i < rows; i++) {
            memcpy(x + i * s->hidden, j->x + kept[i] * s->hidden, s->hidden * sizeof(float));
            memcpy(wide + i * width, j->attended + kept[i] * width, width * sizeof(float)); /* free until `up` */
        }
        finish(j, &j->t->layers[j->number], wide, rows, x, narrow, wide);
    }
}

static bool ends_kept(const job *j, long number) { return j->step.kept && number + 1 == j->t->shape.num_layers; }

static const segments *segments_of(const job *j, long number) {
    return &j->segments[ends_kept(j, number) ? 2 : j->t->layers[number].is_windowed];
}

static void attend(const job *j, long first, long last, float *scratch) {
    const tower_shape *s = &j->t->shape;
    const segments *segments = segments_of(j, j->number);
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

/* ---- their order, and what they cost ---- */

size_t tower_scratch(const tower_shape *s) {
    const long widths[] = {3 * attended_width(s), s->intermediate, s->channels * s->patch_pixels};
    long wide = 0;
    for (int i = 0; i < 3; i++) wide = widths[i] > wide ? widths[i] : wide;
    const size_t rows = ROWS_AT_ONCE * (narrow_width(s) + wide), mixing = mix_scratch(s->head_dim);
    return (rows > mixing ? rows : mixing) + 16;
}

long tower_most_stages(const tower_shape *s) { return 1 + 2 * s->num_layers + 3 * (s->num_levels + 1); }

static double projected(const tower_shape *s) { return 3.0 * s->hidden * attended_width(s); }

static double finished(const tower_shape *s) {
    return s->hidden * (attended_width(s) + (s->activation == SWIGLU ? 3.0 : 2.0) * s->intermediate);
}

/* A block of queries against all keys of its segment, on average. */
static double attended_products(const tower_shape *s, const block *blocks, const segments *of) {
    double products = 0;
    for (long i = of->first; i < of->first + of->blocks; i++) products += 2.0 * blocks[i].rows * blocks[i].num_keys;
    return of->blocks ? products * s->head_dim / of->blocks : 0;
}

static stage *add_layer(const job *j, long number, stage *to) {
    const tower_shape *s = &j->t->shape;
    double products = number < 0 ? s->hidden * s->channels * (double)s->patch_pixels : finished(s);
    if (number + 1 < s->num_layers) products += projected(s);
    if (number >= 0) {
        const segments *of = segments_of(j, number);
        *to++ = (stage){attend, number, of->blocks, 1, attended_products(s, j->blocks, of)};
    }
    if (number >= 0 && ends_kept(j, number))
        *to++ = (stage){end_kept, number, divide_up(j->step.num_kept, ROWS_AT_ONCE), 1, ROWS_AT_ONCE * products};
    else *to++ = (stage){between, number, divide_up(j->step.rows, j->unit), 1, j->unit * products};
    return to;
}

static stage *add_merger(const job *j, long number, stage *to) {
    const merger *m = &j->t->mergers[number];
    const kernels *k = j->t->k;
    const long squares = j->step.rows / square(&j->t->shape);
    const double merged = (double)square(&j->t->shape) * j->t->shape.hidden;
    const long up = linear_panels(k, &m->up), down = linear_panels(k, &m->down);
    *to++ = (stage){norm_merged, number, m->is_norm_of_merged ? squares : j->step.rows, 1, 0};
    *to++ = (stage){merge_up, number, up, 4, squares * merged * m->up.outputs / up};
    *to++ = (stage){merge_down, number, down, 4, squares * merged * m->down.outputs / down};
    return to;
}

long tower_fill_stages(const job *j, stage *first) {
    const tower_shape *s = &j->t->shape;
    stage *to = first;
    for (long layer = -1; layer < s->num_layers; layer++) {
        to = add_layer(j, layer, to);
        for (long i = 0; layer >= 0 && i <= s->num_levels; i++)
            if (j->t->mergers[i].after == layer) to = add_merger(j, i, to);
    }
    return to - first;
}
