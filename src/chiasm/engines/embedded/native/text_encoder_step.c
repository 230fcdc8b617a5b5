#include "text_encoder_parts.h"

/* Rows that go through a layer's products together, their values in the second cache. */
#define ROWS_AT_ONCE 96

/* Queries of one head that are attended together, and their text. */
typedef struct {
    long head, row, rows, start, num_keys, key;
    long to; /* where the first row's result goes */
} block;

typedef struct {
    long first, count; /* in `job.blocks` */
} blocks_of_layer;

/* What a step's phases read. Threads have copies; one that is late by a step finds nothing to do with its copy. */
typedef struct {
    const text_encoder *t;
    text_step step;
    const int64_t *places; /* of each row among the keys */
    const block *blocks;
    blocks_of_layer every, last;
    float *x, *queries, *keys, *values, *attended, *scratch;
    size_t scratch_per_thread;
    long num_keys; /* with those that fill up panels */
    long number;   /* of the layer; -1 stands for what comes before the first */
    long rows, unit; /* to be computed in this phase, and how many of them together */
} job;
_Static_assert(sizeof(job) <= MOST_JOB_BYTES, "a job fits into the team's copy");

/* ---- what is computed row by row ---- */

static void normalise_rows(const job *j, const text_norm *n, long rows, float *x) {
    const long width = j->t->shape.hidden;
    for (long i = 0; i < rows; i++)
        j->t->k->layer_norm(x + i * width, n->weight, n->bias, width, j->t->shape.eps, x + i * width);
}

static void apply_all(const job *j, const linear *l, const float *x, long rows, float *out) {
    j->t->k->apply(l, x, rows, 0, linear_panels(j->t->k, l), out);
}

static void embed(const job *j, long first, long rows, float *x) {
    const text_encoder *t = j->t;
    const text_step *s = &j->step;
    const long width = t->shape.hidden;
    for (long row = first; row < first + rows; row++, x += width) {
        const float *word = t->words + s->ids[row] * width, *position = t->positions + s->positions[row] * width;
        const float *type = t->types ? t->types + s->types[row] * width : NULL;
        for (long i = 0; type && i < width; i++) x[i] = word[i] + type[i] + position[i];
        for (long i = 0; !type && i < width; i++) x[i] = word[i] + position[i];
    }
    normalise_rows(j, &t->norm, rows, x - rows * width);
}

/* Put a row's queries, keys and values where attention wants them. */
static void place_row(const job *j, const float *qkv, long row) {
    const text_shape *s = &j->t->shape;
    const long dim = s->head_dim, panel = 2 * j->t->k->lanes, rows = j->step.rows, key = j->places[row];
    const float scale = s->scale * 1.44269504f; /* weights are powers of two */
    for (long h = 0; h < s->heads; h++) {
        const float *q = qkv + h * dim, *k = q + s->heads * dim, *v = k + s->heads * dim;
        float *query = j->queries + (h * rows + row) * dim;
        float *column = j->keys + (h * j->num_keys + key / panel * panel) * dim + key % panel;
        for (long i = 0; i < dim; i++) query[i] = q[i] * scale;
        for (long i = 0; i < dim; i++) column[i * panel] = k[i];
        memcpy(j->values + (h * rows + row) * dim, v, dim * sizeof(float));
    }
}

static void project(const job *j, const text_layer *l, long first, long rows, const float *x, float *wide) {
    apply_all(j, &l->qkv, x, rows, wide);
    for (long i = 0; i < rows; i++) place_row(j, wide + i * l->qkv.outputs, first + i);
}

static void finish(const job *j, const text_layer *l, long first, long rows, float *x, float *wide) {
    apply_all(j, &l->out, j->attended + first * attended_width(&j->t->shape), rows, x);
    normalise_rows(j, &l->attention_norm, rows, x);
    apply_all(j, &l->up, x, rows, wide);
    apply_all(j, &l->down, wide, rows, x);
    normalise_rows(j, &l->norm, rows, x);
}

/* Where rows are finished: in place, but for the rows kept of the last layer, which lie together from then on. */
static float *rows_to_finish(const job *j, long first, long rows) {
    const size_t width = j->t->shape.hidden;
    if (!j->step.kept || j->number + 1 < j->t->shape.num_layers) return j->x + first * width;
    float *x = j->step.out + first * width;
    for (long i = 0; i < rows; i++) memcpy(x + i * width, j->x + j->step.kept[first + i] * width, width * sizeof(float));
    return x;
}

/* ---- phases; each does a range of its units ---- */

typedef void (*phase)(const job *j, long first, long last, float *scratch);

/* Before the first layer, and after each: all that lies between two layers' attention. */
static void between(const job *j, long first, long last, float *wide) {
    const text_layer *layers = j->t->layers;
    for (long unit = first; unit < last; unit++) {
        const long row = unit * j->unit, rows = smaller(j->unit, j->rows - row);
        float *x = rows_to_finish(j, row, rows);
        if (j->number < 0) embed(j, row, rows, x);
        else finish(j, &layers[j->number], row, rows, x, wide);
        if (j->number + 1 < j->t->shape.num_layers) project(j, &layers[j->number + 1], row, rows, x, wide);
    }
}

static const blocks_of_layer *blocks_now(const job *j) {
    return j->number + 1 < j->t->shape.num_layers ? &j->every : &j->last;
}

static void attend(const job *j, long first, long last, float *scratch) {
    const text_shape *s = &j->t->shape;
    const long dim = s->head_dim, rows = j->step.rows;
    const block *blocks = j->blocks + blocks_now(j)->first;
    for (const block *b = blocks + first; b < blocks + last; b++) {
        const mixing m = {
            .queries = j->queries + (b->head * rows + b->row) * dim,
            .keys = j->keys + (b->head * j->num_keys + b->key) * dim,
            .values = j->values + (b->head * rows + b->start) * dim,
            .out = j->attended + b->to * attended_width(s) + b->head * dim,
            .scratch = scratch,
            .out_stride = attended_width(s),
            .rows = b->rows,
            .num_keys = b->num_keys,
            .dim = dim,
        };
        j->t->k->mix(&m);
    }
}

typedef struct {
    const job *job;
    phase phase;
} job_phase;

static void run_phase(const void *context, long first, long last, int thread) {
    const job_phase *p = context;
    p->phase(p->job, first, last, p->job->scratch + thread * p->job->scratch_per_thread);
}

static void share(member *me, const job *j, phase phase, long total) {
    const job_phase p = {j, phase};
    team_deal(me, total, 1, run_phase, &p);
}

/* So many rows at once that all threads have as many units. */
static void share_rows(member *me, job *j, long rows) {
    const long threads = team_threads(me->team);
    const long units = divide_up(divide_up(rows, ROWS_AT_ONCE), threads) * threads;
    j->rows = rows;
    j->unit = divide_up(rows, units);
    share(me, j, between, divide_up(rows, j->unit));
}

static void run_layers(const void *shared, member *me) {
    job j = *(const job *)shared;
    for (j.number = -1; j.number < j.t->shape.num_layers; j.number++) {
        if (j.number >= 0) share(me, &j, attend, blocks_now(&j)->count);
        const bool is_last = j.number + 1 == j.t->shape.num_layers;
        share_rows(me, &j, is_last && j.step.kept ? j.step.num_kept : j.step.rows);
    }
}

/* ---- a step ---- */

static bool are_places(const int64_t *found, long count, long most) {
    for (long i = 0; i < count; i++)
        if (found[i] < 0 || found[i] >= most) return false;
    return true;
}

static bool is_complete(const text_encoder *t) {
    bool complete = t->norm.bias != NULL;
    for (long i = 0; i < t->shape.num_layers; i++) complete = complete && t->layers[i].down.weights;
    return complete;
}

const char *text_encoder_check(const text_encoder *t, const text_step *s) {
    int64_t rows = 0;
    if (s->rows < 1 || s->rows > INT32_MAX / 2) return "a number of tokens that cannot be computed at once";
    for (long i = 0; i < s->num_texts; i++) {
        if (s->lengths[i] < 1 || s->lengths[i] > s->rows - rows) return "a text of other than its tokens";
        rows += s->lengths[i];
    }
    if (rows != s->rows) return "more tokens than the texts have";
    if (!are_places(s->ids, s->rows, t->shape.num_words)) return "a token that the model does not have";
    if (!are_places(s->positions, s->rows, t->shape.num_positions)) return "a position that the model does not have";
    if (t->types && (!s->types || !are_places(s->types, s->rows, t->shape.num_types))) return "a type that is not there";
    if (s->kept && (s->num_kept < 1 || !are_places(s->kept, s->num_kept, s->rows))) return "a row that is not there";
    for (long i = 1; s->kept && i < s->num_kept; i++)
        if (s->kept[i] <= s->kept[i - 1]) return "rows that are not in order";
    return is_complete(t) ? NULL : "weights that were not set";
}

static void add_blocks(const text_shape *s, block b, long end, block *blocks, blocks_of_layer *to) {
    for (b.head = 0; b.head < s->heads; b.head++) {
        block part = b;
        for (; part.row < end; part.row += MIX_ROWS, part.to += MIX_ROWS) {
            part.rows = smaller(MIX_ROWS, end - part.row);
            blocks[to->first + to->count++] = part;
        }
    }
}

/* Every text's queries in blocks; behind them, those of the rows kept. */
static void fill_blocks(const text_encoder *t, const text_step *s, int64_t *places, block *blocks, job *j) {
    const long panel = 2 * t->k->lanes;
    for (long i = 0, row = 0; i < s->num_texts; row += s->lengths[i++]) {
        const block b = {.row = row, .start = row, .num_keys = s->lengths[i], .key = j->num_keys, .to = row};
        add_blocks(&t->shape, b, row + s->lengths[i], blocks, &j->every);
        for (long n = 0; n < s->lengths[i]; n++) places[row + n] = j->num_keys + n;
        j->num_keys += divide_up(s->lengths[i], panel) * panel;
    }
    j->last = j->every;
    if (!s->kept) return;
    j->last = (blocks_of_layer){j->every.count, 0};
    for (long i = 0, row = 0, n = 0; i < s->num_texts; row += s->lengths[i++])
        for (; n < s->num_kept && s->kept[n] < row + s->lengths[i]; n++) {
            const block b = {0, s->kept[n], 1, row, s->lengths[i], places[row], n};
            add_blocks(&t->shape, b, s->kept[n] + 1, blocks, &j->last);
        }
}

static size_t scratch_floats(const text_shape *s) {
    const long qkv = 3 * attended_width(s), wide = qkv > s->intermediate ? qkv : s->intermediate;
    const size_t rows = ROWS_AT_ONCE * wide, mixing = mix_scratch(s->head_dim);
    return (rows > mixing ? rows : mixing) + 16;
}

static double products(const text_shape *s, long rows) {
    return (double)rows * s->hidden * s->num_layers * (4.0 * attended_width(s) + 2.0 * s->intermediate);
}

bool text_encoder_run(text_encoder *t, const text_step *s) {
    const text_shape *shape = &t->shape;
    const size_t row = s->rows * sizeof(float), width = attended_width(shape);
    const size_t most_keys = s->rows + s->num_texts * 2 * t->k->lanes;
    const size_t most_blocks = shape->heads * (s->rows / MIX_ROWS + s->num_texts + (s->kept ? s->num_kept : 0));
    job j = {.t = t, .step = *s, .scratch_per_thread = scratch_floats(shape)};
    if (!grow(&t->places, s->rows * sizeof(int64_t)) || !grow(&t->blocks, most_blocks * sizeof(block)) ||
        !grow(&t->x, row * shape->hidden) || !grow(&t->queries, row * width) || !grow(&t->values, row * width) ||
        !grow(&t->keys, most_keys * width * sizeof(float)) || !grow(&t->attended, row * width) ||
        !grow(&t->scratch, j.scratch_per_thread * team_threads(t->team) * sizeof(float)))
        return false;
    fill_blocks(t, s, t->places.data, t->blocks.data, &j);
    j.places = t->places.data;
    j.blocks = t->blocks.data;
    j.x = s->kept ? t->x.data : s->out;
    j.queries = t->queries.data;
    j.keys = t->keys.data;
    j.values = t->values.data;
    j.attended = t->attended.data;
    j.scratch = t->scratch.data;
    member alone = {0};
    if (products(shape, s->rows) < shape->alone_products) run_layers(&j, &alone);
    else team_run(t->team, run_layers, &j, sizeof j);
    return true;
}
