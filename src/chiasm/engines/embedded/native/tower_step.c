#include "tower_job.h"

#include <math.h>

/* ---- pieces ---- */

typedef struct {
    const job *job;
    const stage *stage;
    long from;
} dealt_stage;

static void run_phase(const void *context, long first, long last, int thread) {
    const dealt_stage *d = context;
    d->stage->phase(d->job, d->from + first, d->from + last, d->job->scratch + thread * d->job->scratch_per_thread);
}

static void run_piece(const void *shared, member *me) {
    job j = *(const job *)shared;
    for (long i = 0; i < j.piece.count; i++) {
        const stage *s = &j.piece.stages[i];
        const dealt_stage d = {&j, s, i ? 0 : j.piece.from};
        j.number = s->number;
        team_deal(me, s->units - d.from, s->least, run_phase, &d);
    }
}

/* Where a step is: the next unit of the next stage. */
typedef struct {
    const stage *stage, *end;
    long unit;
} position;

/* The piece that begins here, of so many multiplications if they are left, with as much for each thread; moves on. */
static piece next_piece(position *at, double products, long threads) {
    piece p = {.from = at->unit};
    while (at->stage < at->end && p.count < (long)(sizeof p.stages / sizeof *p.stages) && (!p.count || products > 0)) {
        const stage *s = at->stage;
        const double most = s->products > 0 ? products / s->products : INFINITY;
        const long rest = s->units - at->unit, all = s->least * threads;
        const long units = most < rest ? smaller(divide_up((long)most + 1, all) * all, rest) : rest;
        at->unit += units;
        products -= units * s->products;
        p.stages[p.count] = *s;
        p.stages[p.count++].units = at->unit;
        if (at->unit < s->units) return p;
        at->stage++;
        at->unit = 0;
    }
    return p;
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

static const char *check_kept(const tower *t, const tower_step *s) {
    if (!s->kept) return NULL;
    if (has_mergers(&t->shape) || s->num_windows || s->order) return "some rows of what is merged or in windows";
    if (s->num_kept < 1) return "no row";
    for (long i = 0; i < s->num_kept; i++)
        if (s->kept[i] < (i ? s->kept[i - 1] + 1 : 0) || s->kept[i] >= s->rows) return "rows that are not there or not in order";
    return NULL;
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
    if (!problem) problem = check_kept(t, s);
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

/* The rows kept of each picture, one by one; `to` begins with no blocks and the pictures' number of keys. */
static void add_kept(const tower *t, const tower_step *s, const place *places, block *blocks, segments *to) {
    const int64_t *kept = s->kept, *end = kept + s->num_kept;
    long row = 0;
    for (const int64_t *g = s->grids; kept < end; row += g[0] * g[1], g += 2)
        for (; kept < end && *kept < row + g[0] * g[1]; kept++)
            for (long head = 0; head < t->shape.heads; head++)
                blocks[to->first + to->blocks++] = (block){head, *kept, 1, row, g[0] * g[1], places[row].key[0]};
}

static void fill_segments(const tower *t, const tower_step *s, place *places, block *blocks, segments to[3]) {
    long row = 0;
    for (const int64_t *g = s->grids; g < s->grids + 2 * s->num_grids; row += g[0] * g[1], g += 2)
        add_segment(t, row, g[0] * g[1], 0, places, blocks, &to[0]);
    to[1].first = to[0].blocks;
    row = 0;
    for (const int64_t *w = s->windows; w < s->windows + s->num_windows; row += *w++)
        add_segment(t, row, *w, 1, places, blocks, &to[1]);
    to[2] = (segments){.keys = to[0].keys, .first = to[1].first + to[1].blocks};
    if (s->kept) add_kept(t, s, places, blocks, &to[2]);
}

static double products(const tower *t, const tower_step *s) {
    const tower_shape *shape = &t->shape;
    const double layer = 4.0 * attended_width(shape) + 2.0 * shape->intermediate;
    return (double)s->rows * shape->hidden * (shape->channels * shape->patch_pixels + shape->num_layers * layer);
}

/* False when the caller wants no more of the step. */
static bool pause_if_asked(const tower_pause *p) {
    return !p || !__atomic_load_n(p->asked, __ATOMIC_RELAXED) || p->call(p->context);
}

tower_outcome tower_run(tower *t, const tower_step *s, const tower_pause *pause) {
    const tower_shape *shape = &t->shape;
    const long most_segments = s->num_grids + s->num_windows, panel = 2 * t->k->lanes;
    const size_t row = s->rows * sizeof(float), width = attended_width(shape);
    const size_t most_keys = s->rows + most_segments * panel;
    const size_t most_blocks = shape->heads * (2 * (s->rows / MIX_ROWS) + most_segments + (s->kept ? s->num_kept : 0));
    job j = {.t = t, .step = *s, .scratch_per_thread = tower_scratch(shape)};
    j.unit = divide_up(s->rows, divide_up(s->rows, ROWS_AT_ONCE)); /* units of one size, or the last one smaller */
    if (!grow(&t->places, s->rows * sizeof(place)) || !grow(&t->blocks, most_blocks * sizeof(block)) ||
        !grow(&t->x, row * shape->hidden) || !grow(&t->queries, row * width) || !grow(&t->values, row * width) ||
        !grow(&t->keys, most_keys * width * sizeof(float)) || !grow(&t->attended, row * width) ||
        !grow(&t->merged, row * shape->hidden) || !grow(&t->active, row * shape->hidden) ||
        !grow(&t->stages, tower_most_stages(shape) * sizeof(stage)) ||
        !grow(&t->scratch, j.scratch_per_thread * team_threads(t->team) * sizeof(float)))
        return TOWER_NO_MEMORY;
    fill_places(t, s, t->places.data);
    fill_segments(t, s, t->places.data, t->blocks.data, j.segments);
    j.places = t->places.data;
    j.blocks = t->blocks.data;
    j.x = has_mergers(shape) || s->kept ? t->x.data : s->out;
    j.queries = t->queries.data;
    j.keys = t->keys.data;
    j.values = t->values.data;
    j.attended = t->attended.data;
    j.merged = t->merged.data;
    j.active = t->active.data;
    j.scratch = t->scratch.data;
    const stage *stages = t->stages.data;
    position at = {stages, stages + tower_fill_stages(&j, t->stages.data), 0};
    const bool is_alone = s->is_alone || products(t, s) < shape->alone_products;
    const long threads = is_alone ? 1 : team_threads(t->team);
    const double most = pause ? pause->piece_products * threads : INFINITY;
    while (at.stage < at.end) {
        j.piece = next_piece(&at, most, threads);
        member alone = {0};
        if (is_alone) run_piece(&j, &alone);
        else team_run(t->team, run_piece, &j, sizeof j);
        if (at.stage < at.end && !pause_if_asked(pause)) return TOWER_ABANDONED;
    }
    return TOWER_DONE;
}
